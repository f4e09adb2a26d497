"""What every operator does, with shapes: the protocol that `numpy_ops` and `torch_ops` fulfil.

Letters in shapes: T tokens of a step, R requests, H query heads, K KV heads, D head size,
V vocabulary, S rows to sample. Arrays are NumPy's or torch's; the decoder never looks inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minillm.core.sampling import SamplingParams
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.sampling.shaping import Transform
from minillm.ops import Activation
from minillm.ops.linear import Linear
from minillm.ops.paging import Reads
from minillm.ops.routing import Routing
from minillm.speculate.rejection import Proposal

Array = Any


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention needs to know besides its inputs."""

    scale: float
    window: int | None = None  # keys a query sees, its own included
    cap: float | None = None  # scores become cap * tanh(score / cap)


@dataclass(slots=True)
class Batch:
    """The columns of a `StepPlan` that all layers share, as arrays of one library, made once a step."""

    token_ids: Array  # [T]
    logits_indices: Array  # [S], flat tokens whose logits are wanted
    rotations: Sequence[tuple[Array, ...]]  # for each rope of the model (cos, sin) [T, 1, dim / 2] of the positions


@dataclass(slots=True)
class AttentionMetadata:
    """Where the layers of one group write and read their caches in a step."""

    slot_mapping: Array  # [T], where each token's row goes
    reads: Reads  # which slots each query reads


class Ops(Protocol):
    """The operators. Inputs are not changed, except by ``rope_and_store_kv``, which writes the cache."""

    def embed(self, table: Array, token_ids: Array) -> Array:
        """Rows of ``table [V, hidden]`` for ``token_ids [T]``."""

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """``x * weight / sqrt(mean(x * x) + eps)`` over the last dimension; ``weight`` broadcasts over x."""

    def add_rms_norm(self, x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        """(the norm of ``x + residual``, the sum): one operator, so that a kernel can fuse the two."""

    def linear(self, x: Array, linear: Linear) -> Array:
        """``x [T, in]`` by ``weight [out, in]``, plus the bias if there is one: one contiguous read of the weight."""

    def rope_and_store_kv(
        self, qk: Array, v: Array, cos: Array, sin: Array, slot_mapping: Array, k_cache: Array, v_cache: Array
    ) -> Array:
        """Rotates ``qk [T, H + K, D]`` by halves, writes its last K heads and ``v [T, K, D]`` to the caches
        ``[slots, K, D]`` at ``slot_mapping [T]``, returns the first H heads, which are the queries.

        ``cos`` and ``sin`` are ``[T, 1, dim / 2]``: the first ``dim`` elements of a head are rotated."""

    def attention(
        self, q: Array, k_cache: Array, v_cache: Array, read: AttentionMetadata, attention: AttentionSpec
    ) -> Array:
        """``[T, H * D]``: every query over the cached keys of its request at or before its position.

        Prefill chunks and decodes mix in one batch; query head h reads KV head h // (H / K).
        """

    def rope(self, x: Array, cos: Array, sin: Array) -> Array:
        """``x [T, n, dim]`` with its halves rotated; ``cos`` and ``sin`` are ``[T, 1, dim / 2]``."""

    def store(self, rows: Array, slot_mapping: Array, cache: Array) -> None:
        """Writes ``rows [T, *row]`` to ``cache [slots, *row]`` at ``slot_mapping [T]``."""

    def latent_attention(
        self,
        q: Array,
        cache: Array,
        key_up: Array,
        value_up: Array,
        read: AttentionMetadata,
        attention: AttentionSpec,
    ) -> Array:
        """``[T, H * V]`` of ``q [T, H, N + R]`` over a cache ``[slots, 1, C + R]`` of latent vectors and rotated keys.

        ``key_up [H, N, C]`` makes a head's key of a latent vector, ``value_up [H, V, C]`` its value (DeepSeek-V2,
        section 2.1). Few queries are multiplied with ``key_up`` instead of the keys, so that the cache is read as it
        is; for many it is cheaper to expand the keys and values of their request once."""

    def swiglu(self, gate_up: Array, activation: Activation) -> Array:
        """``activation(gate) * up`` of ``gate_up [T, 2 * intermediate]``, gate first."""

    def route(self, logits: Array, routing: Routing, bias: Array | None) -> tuple[Array, Array]:
        """(``[T, per_token]`` experts, ``[T, per_token]`` what weighs them) from router's ``logits [T, count]``.

        ``bias [count]`` is added to scores while experts are chosen, not to what weighs them. Of equal scores the
        expert with the lower number is chosen."""

    def experts(
        self,
        x: Array,
        chosen: Array,
        shares: Array,
        gate_up: Sequence[Linear],
        down: Sequence[Linear],
        activation: Activation,
    ) -> Array:
        """``[T, hidden]``: the sum over a token's ``chosen [T, k]`` experts of ``shares [T, k]`` times what they give.

        Expert e is ``gate_up[e] [2 * intermediate, hidden]`` and ``down[e] [hidden, intermediate]``. Tokens are
        gathered by expert, so that the weights of each expert that is visited are read once, and no others."""

    def silu(self, x: Array) -> Array:
        """``x * sigmoid(x)``."""

    def stack(self, rows: Sequence[Array]) -> Array:
        """``[n, hidden]`` of ``n`` rows ``[hidden]``."""

    def join(self, parts: Sequence[Array], axis: int) -> Array:
        """The parts behind each other along ``axis``."""

    def soft_cap(self, x: Array, cap: float) -> Array:
        """``cap * tanh(x / cap)``."""

    def take_rows(self, x: Array, rows: Array) -> Array:
        """``x[rows]``."""

    def sample(
        self,
        logits: Array,
        params: Sequence[SamplingParams],
        uniforms: Sequence[float],
        transforms: Mapping[int, Transform],
    ) -> list[int]:
        """One id for each row of ``logits [S, V]``, as `minillm.core.sampling.sample` defines it.

        ``transforms`` are by row.
        """

    def distributions(
        self, logits: Array, params: Sequence[SamplingParams], transforms: Mapping[int, Transform]
    ) -> Array:
        """``[S, V]`` float64 probabilities from which ``sample`` draws; ``transforms`` are by row."""

    def draw_against(self, target: Array, proposals: Sequence[Proposal], uniforms: Sequence[float]) -> list[int]:
        """One id for each row of ``target [n, V]``, probabilities, as
        `minillm.speculate.rejection.draw_against` defines it."""

    def logprobs(
        self, logits: Array, rows: Sequence[int], token_ids: Sequence[int], num_top: Sequence[int]
    ) -> list[TokenLogprobs]:
        """For each of ``rows [n]`` of ``logits [S, V]``: the log-probability of its token of ``token_ids [n]``
        and its ``num_top`` highest, as `minillm.core.sampling.logprobs.token_logprobs` defines them."""
