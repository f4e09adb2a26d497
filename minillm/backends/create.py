"""A numeric backend by name; libraries are imported only when they are asked for."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time it would bring NumPy into whoever imports this package, the core among them
    from minillm.backends.numeric import NumericBackend
    from minillm.models.load import LoadedModel

BACKENDS = ("numpy", "torch")
_DTYPES = {"numpy": ("float32", "float64"), "torch": ("float32", "bfloat16", "float64")}


def create_backend(
    model: LoadedModel,
    backend: str = "numpy",
    dtype: str = "auto",
    device: str = "auto",
    *,
    max_model_len: int | None = None,
    debug_poison: bool = False,
) -> NumericBackend:
    """A backend for ``model``, not loaded yet.

    ``dtype`` auto is float32, except for checkpoints on CUDA: there bfloat16. ``device`` auto is CUDA
    where torch has one, else the CPU. ``max_model_len`` shortens the longest sequence; ``debug_poison``
    fills K/V slots that hold nothing valid with NaN.
    Raises ``ValueError`` for an unknown name and ``ModuleNotFoundError`` when torch is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown: choose from {', '.join(BACKENDS)}")
    if dtype not in ("auto", *_DTYPES[backend]):
        raise ValueError(f"dtype {dtype!r} is not one of the {backend} backend's: auto, {', '.join(_DTYPES[backend])}")
    if backend == "numpy":
        if device not in ("auto", "cpu"):
            raise ValueError(
                f"device {device!r}: the numpy backend runs on the cpu; choose the backend torch (--backend torch)"
            )
        from minillm.backends.numpy_backend import NumpyBackend

        return NumpyBackend(
            model,
            dtype="float32" if dtype == "auto" else dtype,
            max_model_len=max_model_len,
            debug_poison=debug_poison,
        )
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(
            "the torch backend needs torch, which is not installed: pip install 'inference-handbook[torch]'"
        )
    from minillm.backends.torch_backend import TorchBackend

    return TorchBackend(model, dtype=dtype, device=device, max_model_len=max_model_len, debug_poison=debug_poison)
