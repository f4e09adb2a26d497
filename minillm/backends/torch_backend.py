"""The torch backend: the CPU, or a CUDA device where there is one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minillm.backends.base import Capacity
from minillm.backends.inputs import stale_slots, step_arrays
from minillm.backends.memory import available_host_bytes, blocks_for, host_kv_budget_bytes
from minillm.core.plan import StepPlan, StepResult
from minillm.loaders.tensors import Float32
from minillm.models.decoder import Decoder, build_parameters
from minillm.models.load import LoadedModel
from minillm.models.rope import angles, inverse_frequencies
from minillm.ops import torch_ops
from minillm.ops.base import Batch
from minillm.ops.paging import reads_of

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_CUDA_SHARE = 0.85  # of what is free once the weights are there; a step's activations need the rest


class TorchBackend:
    """Runs a model with `minillm.ops.torch_ops`; see `minillm.backends.create` for the arguments."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        debug_poison: bool = False,
        available_bytes: int | None = None,
    ) -> None:
        self.model, self.spec = model, model.spec
        self.device = _choose_device(device)
        self.dtype = _choose_dtype(dtype, self.device, model.bundled)
        self._max_model_len = model.max_model_len(max_model_len)
        self._poison, self._available_bytes = debug_poison, available_bytes
        self._decoder: Decoder | None = None
        self._caches: list[tuple[Tensor, Tensor]] = []
        self._frequencies = inverse_frequencies(self.spec.rope, self.spec.head_dim)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        return str(self.device)

    def load(self, *, block_size: int, num_blocks: int | None) -> None:
        """Read the weights and allocate ``num_blocks`` blocks, or as many as the memory takes."""
        if self._decoder is None:
            parameters = build_parameters(self.spec, self.model.weights, self._matrix, self._vector)
            self._decoder = Decoder(self.spec, parameters, torch_ops)
        bytes_per_token = self.spec.kv_elements_per_token * self.dtype.itemsize
        if num_blocks is None:
            num_blocks = blocks_for(
                budget_bytes=self._budget_bytes((self._max_model_len + 2 * block_size) * bytes_per_token),
                block_size=block_size,
                bytes_per_token=bytes_per_token,
                max_model_len=self._max_model_len,
            )
        self._block_size, self._num_blocks = block_size, num_blocks
        # One slot more than the blocks have: padding of gathered keys reads it, nothing writes it.
        shape = (num_blocks * block_size + 1, self.spec.kv_heads, self.spec.head_dim)
        self._caches = [(self._zeros(shape), self._zeros(shape)) for _ in range(self.spec.layers)]
        if self._poison:
            self.poison_blocks(range(num_blocks))

    def capacity(self) -> Capacity:
        """Sizes after ``load``."""
        return Capacity(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes_per_token=self.spec.kv_elements_per_token * self.dtype.itemsize,
            weight_bytes=self.model.weights.parameters * self.dtype.itemsize,
            max_model_len=self._max_model_len,
            vocab_size=self.spec.vocab_size,
        )

    def run(self, plan: StepPlan) -> StepResult:
        """Write K/V of the plan's tokens, attend, sample."""
        started = time.perf_counter()
        token_ids: list[int] = []
        if plan.token_ids:
            with torch.inference_mode():
                logits = self._forward(plan)
                token_ids = torch_ops.sample(logits, plan.sampling, plan.uniforms)
        return StepResult(token_ids, time.perf_counter() - started)

    def logits(self, plan: StepPlan) -> Float32:
        """``[S, V]`` of the plan's ``sample_rows`` as NumPy: ``run`` without the sampling."""
        with torch.inference_mode():
            logits: Float32 = self._forward(plan).to(torch.promote_types(self.dtype, torch.float32)).cpu().numpy()
        return logits

    def _forward(self, plan: StepPlan) -> Tensor:
        if self._decoder is None:
            raise RuntimeError("the backend has no KV memory yet: call load first")
        num_slots = self._num_blocks * self._block_size
        arrays = step_arrays(
            plan, vocab_size=self.spec.vocab_size, num_slots=num_slots, max_model_len=self._max_model_len
        )
        if self._poison:
            self._poison_slots(stale_slots(arrays.slots, self._block_size))
        turn = angles(self._frequencies, arrays.positions)[:, None, :]
        turn_dtype = torch.promote_types(self.dtype, torch.float32)
        batch = Batch(
            token_ids=self._to_device(arrays.token_ids),
            slots=self._to_device(arrays.slots),
            cos=self._to_device(np.cos(turn)).to(turn_dtype),
            sin=self._to_device(np.sin(turn)).to(turn_dtype),
            reads=torch_ops.to_device(reads_of(plan, num_slots), self.device),
            sample_tokens=self._to_device(arrays.sample_tokens),
        )
        logits: Tensor = self._decoder.forward(batch, self._caches)
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination); all sources are read before anything is written."""
        if not pairs:
            return
        offsets = np.arange(self._block_size)
        sources, targets = (
            self._to_device((np.asarray(side)[:, None] * self._block_size + offsets).ravel())
            for side in zip(*pairs, strict=True)
        )
        for keys, values in self._caches:
            keys[targets], values[targets] = keys[sources], values[sources]

    def poison_blocks(self, blocks: Sequence[int]) -> None:
        """Debugging: overwrite freed blocks with NaN."""
        offsets = np.arange(self._block_size)
        self._poison_slots((np.asarray(blocks, dtype=np.int64)[:, None] * self._block_size + offsets).ravel())

    def close(self) -> None:
        """Drop weights and K/V; ``load`` makes them again."""
        self._decoder, self._caches = None, []
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _budget_bytes(self, one_sequence_bytes: int) -> int:
        if self.device.type == "cuda":
            available = torch.cuda.mem_get_info(self.device)[0]
            return int((self._available_bytes or available) * _CUDA_SHARE)
        available = available_host_bytes() if self._available_bytes is None else self._available_bytes
        return host_kv_budget_bytes(available, one_sequence_bytes)

    def _poison_slots(self, slots: np.ndarray) -> None:
        where = self._to_device(slots)
        for keys, values in self._caches:
            keys[where] = values[where] = float("nan")

    def _matrix(self, parts: Sequence[Float32]) -> Tensor:
        # Converted part by part: the float32 copy of a whole joined matrix never exists.
        converted = [self._to_device(part).to(self.dtype) for part in parts]
        return converted[0] if len(converted) == 1 else torch.cat(converted)

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        # NumPy's zeros are pages that cost nothing until they are written; torch writes them at once.
        raw = np.zeros((*shape, self.dtype.itemsize), np.uint8)
        return torch.from_numpy(raw).view(self.dtype).squeeze(-1)

    def _vector(self, values: Float32) -> Tensor:
        return self._to_device(values).to(torch.promote_types(self.dtype, torch.float32))

    def _to_device(self, values: np.ndarray) -> Tensor:
        # A read-only view of a mapped file is copied: torch has no read-only tensors.
        writable = values if values.flags.writeable and values.flags.aligned else values.copy()
        return torch.from_numpy(writable).to(self.device)


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown: choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported: choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices, use cpu"
        )
    return device


def _choose_dtype(name: str, device: torch.device, bundled: bool) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and not bundled else "float32"
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is unknown: choose from auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
