"""The NumPy backend: readable, deterministic, and what runs in the reader's browser."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.backends.base import Capacity
from minillm.backends.inputs import stale_slots, step_arrays
from minillm.backends.memory import available_host_bytes, blocks_for, host_kv_budget_bytes
from minillm.core.plan import StepPlan, StepResult
from minillm.models.decoder import Decoder, build_parameters
from minillm.models.load import LoadedModel
from minillm.models.rope import angles, inverse_frequencies
from minillm.ops import numpy_ops
from minillm.ops.base import Batch
from minillm.ops.paging import reads_of

Array = NDArray[Any]


class NumpyBackend:
    """Runs a model with `minillm.ops.numpy_ops`. Weights and K/V have one dtype, float32 or float64.

    ``max_model_len`` shortens what the model allows. With ``debug_poison``, K/V slots that hold
    nothing of their block's present owner are NaN, so a wrong read cannot stay unseen.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        dtype: str = "float32",
        max_model_len: int | None = None,
        debug_poison: bool = False,
        available_bytes: int | None = None,
    ) -> None:
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is {dtype!r}: the numpy backend computes in float32 or float64")
        self.model, self.spec = model, model.spec
        self._dtype = np.dtype(dtype)
        self._max_model_len = model.max_model_len(max_model_len)
        self._poison, self._available_bytes = debug_poison, available_bytes
        self._decoder: Decoder | None = None
        self._caches: list[tuple[Array, Array]] = []
        self._frequencies = inverse_frequencies(self.spec.rope, self.spec.head_dim)

    @property
    def dtype_name(self) -> str:
        return self._dtype.name

    @property
    def device_name(self) -> str:
        return "cpu"

    def load(self, *, block_size: int, num_blocks: int | None) -> None:
        """Read the weights and allocate ``num_blocks`` blocks, or as many as the memory takes."""
        if self._decoder is None:
            parameters = build_parameters(self.spec, self.model.weights, self._matrix, self._vector)
            self._decoder = Decoder(self.spec, parameters, numpy_ops)
        bytes_per_token = self.spec.kv_elements_per_token * self._dtype.itemsize
        if num_blocks is None:
            available = available_host_bytes() if self._available_bytes is None else self._available_bytes
            one_sequence = (self._max_model_len + 2 * block_size) * bytes_per_token
            num_blocks = blocks_for(
                budget_bytes=host_kv_budget_bytes(available, one_sequence),
                block_size=block_size,
                bytes_per_token=bytes_per_token,
                max_model_len=self._max_model_len,
            )
        self._block_size, self._num_blocks = block_size, num_blocks
        # One slot more than the blocks have: padding of gathered keys reads it, nothing writes it.
        shape = (num_blocks * block_size + 1, self.spec.kv_heads, self.spec.head_dim)
        # zeros() maps pages that cost nothing until they are written, so a large pool is free at first.
        self._caches = [(np.zeros(shape, self._dtype), np.zeros(shape, self._dtype)) for _ in range(self.spec.layers)]
        if self._poison:
            self.poison_blocks(range(num_blocks))

    def capacity(self) -> Capacity:
        """Sizes after ``load``."""
        return Capacity(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes_per_token=self.spec.kv_elements_per_token * self._dtype.itemsize,
            weight_bytes=self.model.weights.parameters * self._dtype.itemsize,
            max_model_len=self._max_model_len,
            vocab_size=self.spec.vocab_size,
        )

    def run(self, plan: StepPlan) -> StepResult:
        """Write K/V of the plan's tokens, attend, sample."""
        started = time.perf_counter()
        token_ids: list[int] = []
        if plan.token_ids:
            logits = self.logits(plan)
            token_ids = numpy_ops.sample(logits, plan.sampling, plan.uniforms)
        return StepResult(token_ids, time.perf_counter() - started)

    def logits(self, plan: StepPlan) -> Array:
        """``[S, V]`` of the plan's ``sample_rows``: ``run`` without the sampling."""
        if self._decoder is None:
            raise RuntimeError("the backend has no KV memory yet: call load first")
        arrays = step_arrays(
            plan,
            vocab_size=self.spec.vocab_size,
            num_slots=self._num_blocks * self._block_size,
            max_model_len=self._max_model_len,
        )
        if self._poison:
            self._poison_slots(stale_slots(arrays.slots, self._block_size))
        turn = angles(self._frequencies, arrays.positions)[:, None, :]
        batch = Batch(
            token_ids=arrays.token_ids,
            slots=arrays.slots,
            cos=np.cos(turn).astype(self._dtype),
            sin=np.sin(turn).astype(self._dtype),
            reads=reads_of(plan, self._num_blocks * self._block_size),
            sample_tokens=arrays.sample_tokens,
        )
        logits: Array = self._decoder.forward(batch, self._caches)
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination); all sources are read before anything is written."""
        if not pairs:
            return
        offsets = np.arange(self._block_size)
        sources, targets = (np.asarray(side)[:, None] * self._block_size + offsets for side in zip(*pairs, strict=True))
        for keys, values in self._caches:
            keys[targets], values[targets] = keys[sources], values[sources]

    def poison_blocks(self, blocks: Sequence[int]) -> None:
        """Debugging: overwrite freed blocks with NaN."""
        offsets = np.arange(self._block_size)
        self._poison_slots((np.asarray(blocks, dtype=np.int64)[:, None] * self._block_size + offsets).ravel())

    def close(self) -> None:
        """Drop weights and K/V; ``load`` makes them again."""
        self._decoder, self._caches = None, []

    def _poison_slots(self, slots: NDArray[np.int64]) -> None:
        for keys, values in self._caches:
            keys[slots] = values[slots] = np.nan

    def _matrix(self, parts: Sequence[Array]) -> Array:
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.require(joined, self._dtype, [numpy_ops.MATRIX_ORDER, "A"])

    def _vector(self, values: Array) -> Array:
        return values.astype(self._dtype)
