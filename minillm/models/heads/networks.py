"""The forward passes of draft heads, written against `minillm.ops.base.Ops` as the decoder is.

f is a hidden state of the target after its last norm: token i + 1 is drawn from f_i by the target's head, which
these share, as they share its embedding.

- Medusa (Cai et al., 2024): head k turns f_i into what token i + 1 + k is drawn from: ``f + SiLU(W_k f)``.
- EAGLE (Li et al., 2024) and multi-token prediction (DeepSeek-V3, 2024, section 2.2): a module joins a hidden
  state with the embedding of the token after it, and runs one decoder layer over all of these so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.loaders.tensors import Float32
from minillm.models.decoder import Layer, attend
from minillm.models.heads.files import HeadFiles
from minillm.models.spec import ModelSpec
from minillm.ops.base import Array, AttentionSpec, Batch, Ops

Matrix = Callable[[Sequence[Float32]], Array]
Vector = Callable[[Float32], Array]


class MedusaHeads:
    """All heads side by side, none of which sees what another says."""

    def __init__(self, files: HeadFiles, ops: Ops, matrix: Matrix) -> None:
        self._ops = ops
        self.blocks = [matrix([files.read(f"blocks.{i}.weight")]) for i in range(files.depth)]

    def forward(self, hidden: Array) -> list[Array]:
        """For hidden states ``[R, hidden]`` those of each head, ``[R, hidden]``."""
        return [hidden + self._ops.silu(self._ops.linear(hidden, block, None)) for block in self.blocks]


@dataclass(slots=True)
class _Weights:
    hidden_norm: Array
    embed_norm: Array
    join_hidden: Array  # of the joining matrix, the half that hidden states meet
    join_embedded: Array
    layer: Layer
    norm: Array


class HeadModule:
    """One module; its keys and values lie in a cache of its own."""

    def __init__(
        self, files: HeadFiles, index: int, spec: ModelSpec, ops: Ops, embed: Array, matrix: Matrix, vector: Vector
    ) -> None:
        self._spec, self._ops, self._embed = spec, ops, embed
        self._weights = _read(files, index, spec, matrix, vector)

    def forward(self, hidden: Array, batch: Batch, cache: tuple[Array, Array]) -> tuple[Array, Array]:
        """For hidden states ``[T, hidden]`` and the tokens after them, ``batch.token_ids``: (what is drawn from, the
        hidden states of another module), ``[T, hidden]`` both."""
        spec, ops, w, layer = self._spec, self._ops, self._weights, self._weights.layer
        hidden = ops.rms_norm(hidden, w.hidden_norm, spec.norm_eps)
        embedded = ops.rms_norm(ops.embed(self._embed, batch.token_ids), w.embed_norm, spec.norm_eps)
        joined = ops.linear(hidden, w.join_hidden, None) + ops.linear(embedded, w.join_embedded, None)
        normed = ops.rms_norm(joined, layer.attention_norm, spec.norm_eps)
        attended = ops.linear(attend(spec, ops, layer, normed, batch, cache), layer.output, None)
        normed, joined = ops.add_rms_norm(attended, joined, layer.mlp_norm, spec.norm_eps)
        inner = ops.swiglu(ops.linear(normed, layer.gate_up, None), spec.activation)
        return ops.add_rms_norm(ops.linear(inner, layer.down, None), joined, w.norm, spec.norm_eps)


def _read(files: HeadFiles, index: int, spec: ModelSpec, matrix: Matrix, vector: Vector) -> _Weights:
    def tensor(name: str) -> Float32:
        return files.read(f"modules_.{index}.{name}.weight")

    def joined(*names: str) -> Any:
        return matrix([tensor(f"layer.{name}") for name in names])

    join = tensor("join")
    layer = Layer(
        attention_norm=vector(tensor("layer.input_layernorm")),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qkv_bias=None,
        qk_norm=None,
        output=joined("self_attn.o_proj"),
        output_bias=None,
        post_attention_norm=None,
        mlp_norm=vector(tensor("layer.post_attention_layernorm")),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        gate_up_bias=None,
        down=joined("mlp.down_proj"),
        down_bias=None,
        post_mlp_norm=None,
        attention=AttentionSpec(spec.score_scale),
    )
    return _Weights(
        hidden_norm=vector(tensor("hidden_norm")),
        embed_norm=vector(tensor("embed_norm")),
        join_hidden=matrix([join[:, : spec.hidden]]),
        join_embedded=matrix([join[:, spec.hidden :]]),
        layer=layer,
        norm=vector(tensor("norm")),
    )
