"""The forward passes of draft heads, written against `minillm.ops.base.Ops` as the decoder is.

f is a hidden state of the target after its last norm: token i + 1 is drawn from f_i by the target's head, which
these share, as they share its embedding.

- Medusa (Cai et al., 2024): head k turns f_i into what token i + 1 + k is drawn from: ``f + SiLU(W_k f)``.
- EAGLE (Li et al., 2024) and multi-token prediction (DeepSeek-V3, 2024, section 2.2): a module joins a hidden
  state with the embedding of the token after it, and runs one decoder layer over all of these so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minillm.loaders.tensors import Float32
from minillm.models.attention import AttentionMixer, Cache
from minillm.models.feed_forward import DenseFeedForward
from minillm.models.heads.files import HeadFiles, layer_of_module
from minillm.models.reader import Reader
from minillm.models.spec import ModelSpec
from minillm.models.weights import plain_name
from minillm.ops.base import Array, AttentionMetadata, Batch, Ops
from minillm.ops.linear import Linear

Matrix = Callable[[Sequence[Float32]], Array]
Vector = Callable[[Float32], Array]


class MedusaHeads:
    """All heads side by side, none of which sees what another says."""

    def __init__(self, files: HeadFiles, ops: Ops, matrix: Matrix) -> None:
        self._ops = ops
        self.blocks = [Linear(matrix([files.read(f"blocks.{i}.weight")])) for i in range(files.depth)]

    def forward(self, hidden: Array) -> list[Array]:
        """For hidden states ``[R, hidden]`` those of each head, ``[R, hidden]``."""
        return [hidden + self._ops.silu(self._ops.linear(hidden, block)) for block in self.blocks]


class HeadModule:
    """One module; its keys and values lie in a cache of its own."""

    def __init__(
        self, files: HeadFiles, index: int, spec: ModelSpec, ops: Ops, embed: Array, matrix: Matrix, vector: Vector
    ) -> None:
        self._ops, self._embed, self._eps = ops, embed, spec.norm_eps

        def tensor(name: str) -> Float32:
            return files.read(f"modules_.{index}.{name}")

        attention, ffn = layer_of_module(spec)
        self.cache_spec = attention.cache
        reader = Reader(lambda name: tensor(f"layer.{plain_name(name)}"), matrix, vector)
        self._mixer_norm, self._ffn_norm = reader.norm("mixer_norm"), reader.norm("ffn_norm")
        self._mixer = AttentionMixer(attention, spec.norm_eps, spec.ropes, reader, "")
        self._output = reader.linear("", "output")
        self._ffn = DenseFeedForward(ffn, reader, "")
        # The joining matrix, as the half that hidden states meet and the half that embeddings do.
        join = tensor("join.weight")
        self._join_hidden, self._join_embedded = (
            Linear(matrix([half])) for half in (join[:, : spec.hidden], join[:, spec.hidden :])
        )
        self._hidden_norm, self._embed_norm, self._norm = (
            vector(tensor(f"{name}.weight")) for name in ("hidden_norm", "embed_norm", "norm")
        )

    def forward(self, hidden: Array, batch: Batch, read: AttentionMetadata, cache: Cache) -> tuple[Array, Array]:
        """For hidden states ``[T, hidden]`` and the tokens after them, ``batch.token_ids``: (what is drawn from, the
        hidden states of another module), ``[T, hidden]`` both."""
        ops, eps = self._ops, self._eps
        hidden = ops.rms_norm(hidden, self._hidden_norm, eps)
        embedded = ops.rms_norm(ops.embed(self._embed, batch.token_ids), self._embed_norm, eps)
        joined = ops.linear(hidden, self._join_hidden) + ops.linear(embedded, self._join_embedded)
        normed = ops.rms_norm(joined, self._mixer_norm, eps)
        mixed = ops.linear(self._mixer(ops, normed, batch, read, cache), self._output)
        normed, joined = ops.add_rms_norm(mixed, joined, self._ffn_norm, eps)
        return ops.add_rms_norm(self._ffn(ops, normed), joined, self._norm, eps)
