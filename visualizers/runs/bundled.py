"""The bundled models on the NumPy backend, loaded once for all figures that run them.

Each engine that is made with one loads its own blocks, so only one of them may run at a time.
"""

from __future__ import annotations

from functools import cache

from minillm import hub
from minillm.backends.numpy_backend import NumpyBackend
from minillm.models.load import LoadedModel, load_model
from minillm.models.tokenizer import Tokenizer, load_tokenizer

MODEL, DRAFT_MODEL = "tiny", "tiny-draft"


@cache
def model(name: str = MODEL) -> LoadedModel:
    return load_model(hub.BUNDLED / name)


@cache
def backend(name: str = MODEL) -> NumpyBackend:
    return NumpyBackend(model(name))


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(hub.BUNDLED / MODEL)


@cache
def encode(text: str) -> list[int]:
    """Token ids of a text."""
    return _tokenizer().encode(text)


def decode(token_ids: list[int]) -> str:
    """Text of token ids."""
    return _tokenizer().decode(token_ids)
