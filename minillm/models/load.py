"""From a path to a model ready for any backend: spec, lazily read weights, and what its tokenizer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.loaders.files import LoadError
from minillm.loaders.quantized import check_quantization
from minillm.loaders.safetensors import SafetensorsDirectory, read_json
from minillm.loaders.weights import Weights
from minillm.models.hf_config import spec_from_hf_config
from minillm.models.spec import ModelSpec, SpecError

_ASSETS = Path(__file__).resolve().parent.parent / "assets"


@dataclass(frozen=True)
class LoadedModel:
    """A model whose files are open and checked. Nothing is read from disk until a backend loads it.

    The tokenizer is built from ``path / "tokenizer.json"`` for a directory, from ``gguf_metadata`` for
    a GGUF file.
    """

    name: str
    path: Path  # a directory, or a .gguf file
    spec: ModelSpec
    weights: Weights
    eos_token_ids: tuple[int, ...]
    gguf_metadata: Mapping[str, Any] | None = None

    @property
    def bundled(self) -> bool:
        """Whether it is one of the small models that ship with the package."""
        return self.path.resolve().is_relative_to(_ASSETS)

    def max_model_len(self, requested: int | None) -> int:
        """The longest sequence to run: the model's own limit, or a shorter one that was asked for."""
        if requested is None:
            return self.spec.max_positions
        if not 1 <= requested <= self.spec.max_positions:
            raise ValueError(
                f"max_model_len is {requested:,}, {self.name} takes 1 to {self.spec.max_positions:,} tokens"
            )
        return requested


def load_model(path: str | Path) -> LoadedModel:
    """Open a safetensors directory (``config.json`` beside the weights) or a ``.gguf`` file.

    Raises:
        LoadError: the files are missing, broken, or not what the config says.
        SpecError: an architecture, or a field of it, that this engine does not run.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    if not path.exists():
        raise LoadError(f"{path}: there is no such file or directory")
    raise LoadError(f"{path}: a directory with config.json and safetensors, or a .gguf file is needed")


def _load_directory(path: Path) -> LoadedModel:
    config = read_json(path / "config.json")
    try:
        spec = spec_from_hf_config(config)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    source = SafetensorsDirectory(path)
    check_quantization(source, config.get("quantization_config"))
    generation = path / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    return LoadedModel(
        name=path.name,
        path=path,
        spec=spec,
        weights=Weights(source, spec, "huggingface"),
        eos_token_ids=_ids(path, config.get("eos_token_id") if eos is None else eos, spec.vocab_size),
    )


def _ids(path: Path, value: object, vocab_size: int) -> tuple[int, ...]:
    """``eos_token_id`` is absent, one id, or a list of them."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise LoadError(f"{path}: eos_token_id is {value!r}, ids from 0 to {vocab_size - 1:,} are needed")
    return tuple(ids)
