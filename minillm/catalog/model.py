"""A catalogued model: its geometry, with the questions that prose and figures ask of it, in base units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minillm.catalog.accelerator import Accelerator
from minillm.catalog.formats import NATIVE, WeightFormats, weight_formats
from minillm.catalog.geometry import Geometry, GroupedAttention
from minillm.catalog.source import Source
from minillm.costs import flops, kv, roofline
from minillm.costs.check import CostError, positive


@dataclass(frozen=True)
class Model:
    """``geometry`` has the sizes; ``published_parameters`` is the count that the publisher or the files give.

    Where a ``dtype`` of the weights is asked for, ``"native"`` means ``native``: the formats of the published files.
    """

    slug: str
    title: str
    geometry: Geometry
    source: Source | None = None
    published_parameters: int | None = None
    native: WeightFormats | None = field(default_factory=WeightFormats)  # None: not understood

    @property
    def parameters(self) -> int:
        """All parameters of the language model."""
        return self.geometry.parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: all of them, unless experts are chosen."""
        return self.geometry.active_parameters()

    @property
    def layers(self) -> int:
        return self.geometry.layers

    @property
    def hidden_size(self) -> int:
        return self.geometry.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.geometry.vocab_size

    @property
    def context_tokens(self) -> int:
        """The longest sequence that the config declares."""
        return self.geometry.context_tokens

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.geometry.attention.heads

    @property
    def kv_heads(self) -> int:
        return self._grouped("kv_heads").kv_heads

    @property
    def head_dim(self) -> int:
        return self._grouped("head_dim").head_dim

    @property
    def attention_kind(self) -> str:
        """``"MHA"``, ``"GQA"``, ``"MQA"`` or ``"MLA"``."""
        a = self.geometry.attention
        if not isinstance(a, GroupedAttention):
            return "MLA"
        if a.kv_heads == a.heads:
            return "MHA"
        return "MQA" if a.kv_heads == 1 else "GQA"

    def _grouped(self, name: str) -> GroupedAttention:
        attention = self.geometry.attention
        if not isinstance(attention, GroupedAttention):
            raise CostError(
                f"{self.slug} has latent attention: {name} does not give its cache, use kv_bytes_per_token(dtype)"
            )
        return attention

    def weight_bytes(self, dtype: str = NATIVE, experts: str | None = None) -> Any:
        """Bytes of all weights in ``dtype``, of the routed experts' matrices in ``experts`` (default: the same)."""
        return self.geometry.weight_bytes(weight_formats(dtype, self.native, experts))

    def read_bytes(self, dtype: str = NATIVE, step_tokens: Any = 1) -> Any:
        """Bytes of weights that a step of so many tokens must read: of experts those chosen, no look-up table."""
        return self.geometry.weight_bytes(weight_formats(dtype, self.native), step_tokens)

    def kv_bytes_per_token(self, dtype: str, expanded: bool = False) -> Any:
        """Bytes that a token adds to the cache until the first window is full.

        ``expanded``: in a runtime that caches the expanded keys and values of MLA.
        """
        return kv.growth_bytes_per_token(self.geometry.cache_groups(expanded), dtype)

    def kv_bytes(self, context_tokens: Any, dtype: str, batch: Any = 1, expanded: bool = False) -> Any:
        """Bytes of the cache of ``batch`` sequences of ``context_tokens``, windows counted at their length."""
        return kv.kv_logical_bytes(self.geometry.cache_groups(expanded), context_tokens, dtype, batch)

    def kv_allocated_bytes(
        self,
        context_tokens: Any,
        dtype: str,
        block_size: Any,
        batch: Any = 1,
        *,
        expanded: bool = False,
        frees_behind_window: bool = False,
    ) -> Any:
        """Bytes that an engine with whole blocks reserves (:func:`minillm.costs.kv.kv_allocated_bytes`)."""
        groups = self.geometry.cache_groups(expanded)
        return kv.kv_allocated_bytes(
            groups, context_tokens, dtype, block_size, batch, frees_behind_window=frees_behind_window
        )

    def decode_bytes(
        self,
        context_tokens: Any,
        batch: Any = 1,
        dtype: str = NATIVE,
        kv_dtype: str = "bf16",
    ) -> Any:
        """Bytes that a decode step must read: its weights once (:meth:`read_bytes`), the cache of each sequence."""
        return self.read_bytes(dtype, batch) + self.kv_bytes(context_tokens, kv_dtype, batch)

    def decode_flops(self, context_tokens: Any, batch: Any = 1) -> Any:
        """FLOPs of a decode step of ``batch`` sequences that each have ``context_tokens`` in their cache."""
        return batch * self.geometry.step_flops([1], [context_tokens], 1)

    def prefill_flops(self, tokens: Any) -> Any:
        """FLOPs of a prefill of ``tokens`` from nothing, logits of the last position only."""
        return self.geometry.step_flops([tokens], [0], 1)

    def peak_flops(self, accelerator: Accelerator, dtype: str = NATIVE) -> float:
        """The fastest dense peak of ``accelerator`` for a format that the matrices have: for a bound on time."""
        found = weight_formats(dtype, self.native)
        used = (found.matrices, found.experts) if self.geometry.experts else (found.matrices,)
        return max(accelerator.flops_for_weights(name) for name in used)

    def matrix_flops(self, rows: Any) -> Any:
        """FLOPs of the layers' matrices for so many rows: no embedding, which is looked up, and no head."""
        return flops.linear_flops(self.geometry.matmul_parameters(), rows)

    def head_flops(self, rows: Any) -> Any:
        """FLOPs of the output head for ``rows`` rows of logits."""
        return self.geometry.head_flops(rows)

    def attention_flops(self, tokens: Any) -> Any:
        """FLOPs of scores and weighted sums of a prefill of ``tokens`` from nothing."""
        return self.geometry.attention_flops([tokens], [0])

    def step_time_s(
        self,
        accelerator: Accelerator,
        new_tokens: Sequence[int],
        cached_tokens: Sequence[int],
        dtype: str = NATIVE,
        kv_dtype: str = "bf16",
        sampled: int | None = None,
    ) -> float:
        """The least seconds of a step of a serving engine, by the roofline of ``accelerator``.

        Sequence ``r`` computes ``new_tokens[r]`` tokens behind ``cached_tokens[r]`` in its cache: a decode is
        1 new token, a prefill many. ``sampled`` rows of logits, by default one a sequence. The weights
        are read once; each sequence's cache is read once, what the step writes is not counted.
        """
        if len(new_tokens) != len(cached_tokens):
            raise CostError(f"{len(new_tokens)} sequences have new tokens and {len(cached_tokens)} have cached ones")
        read = self.read_bytes(dtype, sum(new_tokens))
        groups = self.geometry.cache_groups()
        for new, cached in zip(new_tokens, cached_tokens, strict=True):
            read += kv.kv_logical_bytes(groups, cached + new, kv_dtype)
        rows = len(new_tokens) if sampled is None else sampled
        work = self.geometry.step_flops(new_tokens, cached_tokens, rows)
        peak = self.peak_flops(accelerator, dtype)
        return float(roofline.step_time_s(read, work, accelerator.memory_bandwidth, peak))

    def prefill_time_s(self, accelerator: Accelerator, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """The least seconds of one step with the tokens of a prompt that are not in the cache."""
        if not 0 <= cached_tokens < prompt_tokens:
            raise CostError(
                f"{cached_tokens} of {prompt_tokens} prompt tokens are cached: at least one is left to compute"
            )
        return self.step_time_s(accelerator, [prompt_tokens - cached_tokens], [cached_tokens])

    def verify_cost(
        self,
        accelerator: Accelerator,
        draft_tokens: Any,
        batch: Any = 1,
        context_tokens: Any = 0,
        dtype: str = NATIVE,
    ) -> Any:
        """Time of a step that verifies ``draft_tokens`` for each of ``batch`` sequences over that of a plain step.

        Both by the roofline. A sequence's cache is read once for all its tokens, and each has a row of logits;
        of experts, a step reads those that its tokens choose.
        """

        peak = self.peak_flops(accelerator, dtype)

        def step_s(tokens: Any) -> Any:
            read = self.read_bytes(dtype, batch * tokens)
            read = read + self.kv_bytes(context_tokens + tokens, "bf16", batch)
            work = batch * self.geometry.step_flops([tokens], [context_tokens], tokens)
            return roofline.step_time_s(read, work, accelerator.memory_bandwidth, peak)

        return step_s(1 + draft_tokens) / step_s(1)

    def chunk_times_s(
        self, accelerator: Accelerator, prompt_tokens: int, budget: int, decoding: int = 0, context_tokens: int = 1
    ) -> list[float]:
        """The least seconds of each step in which a prompt runs in chunks, ``budget`` tokens a step.

        ``decoding`` sequences get a token in each of them, and read ``context_tokens`` of cache for it.
        """
        if not decoding < budget:
            raise CostError(f"a budget of {budget} tokens is all taken by {decoding} decoding sequences: raise it")
        positive(prompt_tokens=prompt_tokens, context_tokens=context_tokens)
        times, done = [], 0
        while done < prompt_tokens:
            chunk = min(budget - decoding, prompt_tokens - done)
            ends = done + chunk == prompt_tokens  # only the last chunk has a row to sample
            new, cached = [1] * decoding + [chunk], [context_tokens - 1] * decoding + [done]
            times.append(self.step_time_s(accelerator, new, cached, sampled=decoding + ends))
            done += chunk
        return times

    def chunked_ttft_s(
        self, accelerator: Accelerator, prompt_tokens: int, budget: int, decoding: int = 0, context_tokens: int = 1
    ) -> float:
        """The least seconds to a prompt's first token in chunks (:meth:`chunk_times_s`)."""
        return sum(self.chunk_times_s(accelerator, prompt_tokens, budget, decoding, context_tokens))

    def longest_chunk_s(
        self, accelerator: Accelerator, prompt_tokens: int, budget: int, decoding: int = 0, context_tokens: int = 1
    ) -> float:
        """The longest of those steps: what a decoding sequence waits at least for one of its tokens."""
        return max(self.chunk_times_s(accelerator, prompt_tokens, budget, decoding, context_tokens))
