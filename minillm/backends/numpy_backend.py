"""The NumPy backend: readable, deterministic, and what runs in the reader's browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.backends.numeric import NumericBackend
from minillm.core.plan import StepPlan
from minillm.loaders.tensors import Float32
from minillm.models.load import LoadedModel
from minillm.ops import numpy_ops
from minillm.ops.paging import Reads

Array = NDArray[Any]


class NumpyBackend(NumericBackend):
    """Runs a model with `minillm.ops.numpy_ops`. Weights and K/V have one dtype, float32 or float64."""

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
        super().__init__(model, numpy_ops, max_model_len, debug_poison, available_bytes)
        self._dtype = np.dtype(dtype)

    @property
    def dtype_name(self) -> str:
        return self._dtype.name

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def _itemsize(self) -> int:
        return self._dtype.itemsize

    def logits(self, plan: StepPlan) -> Array:
        """``[S, V]`` of the plan's ``logits_indices``: ``run`` without the sampling."""
        logits: Array = self._forward(plan)
        return logits

    def matrix(self, parts: Sequence[Float32]) -> Array:
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.require(joined, self._dtype, [numpy_ops.MATRIX_ORDER, "A"])

    def vector(self, values: NDArray[np.floating]) -> Array:
        return values.astype(self._dtype)

    def array(self, values: NDArray[Any]) -> Array:
        return values

    def _host(self, values: Array) -> Array:
        return values

    def _reads(self, reads: Reads) -> Reads:
        return reads

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, self._dtype)

    def _host_zeros(self, shape: tuple[int, ...]) -> Array:
        return self._zeros(shape)

    def _to_bytes(self, values: Array) -> bytes:
        return values.tobytes()

    def _from_bytes(self, data: bytes, shape: tuple[int, ...]) -> Array:
        return np.frombuffer(data, self._dtype).reshape(shape)

    def _beside(self, values: Array, cache: Array) -> Array:
        return values
