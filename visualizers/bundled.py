"""The bundled model on the NumPy backend, loaded once for all figures that run it.

Each engine that is made with it loads its own blocks, so only one of them may run at a time.
"""

from __future__ import annotations

from functools import cache

from minillm import hub
from minillm.backends.base import Backend
from minillm.backends.numpy_backend import NumpyBackend
from minillm.models.load import load_model
from minillm.models.tokenizer import Tokenizer, load_tokenizer

MODEL = "tiny"


@cache
def backend() -> Backend:
    return NumpyBackend(load_model(hub.BUNDLED / MODEL))


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(hub.BUNDLED / MODEL)


@cache
def encode(text: str) -> list[int]:
    """Token ids of a text."""
    return _tokenizer().encode(text)
