"""From a path to a model ready for any backend: spec, lazily read weights, and what its tokenizer is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.loaders.files import LoadError, read_json
from minillm.loaders.gguf import GGUFFile
from minillm.loaders.quantized import check_quantization
from minillm.loaders.safetensors import SafetensorsDirectory
from minillm.models.gguf_config import ROPE_DIVISORS_TENSOR, spec_from_gguf
from minillm.models.hf_config import spec_from_hf_config
from minillm.models.spec import ModelSpec, SpecError
from minillm.models.tokenizer import Tokenizer, load_tokenizer
from minillm.models.weights import Weights

if TYPE_CHECKING:
    from minillm.models.chat_template import ChatTemplate

_ASSETS = Path(__file__).resolve().parent.parent / "assets"


@dataclass(frozen=True)
class LoadedModel:
    """A model whose files are open and checked. Weights are not read from disk until a backend loads it."""

    name: str
    path: Path  # a directory, or a .gguf file
    spec: ModelSpec
    weights: Weights
    gguf_metadata: Mapping[str, Any] | None = None  # what a GGUF file's tokenizer is made of

    @property
    def bundled(self) -> bool:
        """Whether it is one of the small models that ship with the package."""
        return self.path.resolve().is_relative_to(_ASSETS)

    def tokenizer(self) -> Tokenizer:
        """Open the model's tokenizer.

        Raises:
            LoadError: it is missing, damaged or of a kind that is not read; the message names the file.
        """
        with _named(self.path):
            return load_tokenizer(self.path if self.gguf_metadata is None else self.gguf_metadata)

    def chat_template(self) -> ChatTemplate:
        """Open the model's chat template.

        Raises:
            LoadError: there is none, or it is no template; the message names the file.
        """
        from minillm.models.chat_template import load_chat_template  # brings Jinja: only a chat pays for it

        source = self.path if self.gguf_metadata is None else self.gguf_metadata
        with _named(self.path):
            return load_chat_template(source, self.tokenizer())

    def max_model_len(self, requested: int | None) -> int:
        """The longest sequence to run: the model's own limit, or a shorter one that was asked for."""
        if requested is None:
            return self.spec.max_positions
        if not 1 <= requested <= self.spec.max_positions:
            raise ValueError(
                f"max_model_len is {requested:,}, {self.name} takes 1 to {self.spec.max_positions:,} tokens"
            )
        return requested


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of what is read from ``path`` become a `LoadError` that names it."""
    try:
        yield
    except LoadError:
        raise
    except (ValueError, FileNotFoundError) as error:
        raise LoadError(f"{path}: {error}") from error


def load_model(path: str | Path) -> LoadedModel:
    """Open a safetensors directory (``config.json`` beside the weights) or a ``.gguf`` file.

    Raises:
        LoadError: the files are missing, broken, not what the config says, or of an architecture that
            this engine does not run.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    if not path.exists():
        raise LoadError(f"{path}: there is no such file or directory")
    if path.suffix == ".gguf":
        return _load_gguf(path)
    raise LoadError(f"{path}: a directory with config.json and safetensors, or a .gguf file is needed")


def _load_directory(path: Path) -> LoadedModel:
    config = read_json(path / "config.json")
    try:
        spec = spec_from_hf_config(config)
    except SpecError as error:
        raise LoadError(f"{path}: {error}") from None
    source = SafetensorsDirectory(path)
    check_quantization(source, config.get("quantization_config"))
    return LoadedModel(
        name=path.name,
        path=path,
        spec=spec,
        weights=Weights(source, spec, "huggingface"),
    )


def _load_gguf(path: Path) -> LoadedModel:
    source = GGUFFile(path)
    metadata = source.metadata
    if "token_embd.weight" not in source:
        raise LoadError(f"{path}: tensor 'token_embd.weight' is missing: is it a language model?")
    has_divisors = ROPE_DIVISORS_TENSOR in source
    try:
        spec = spec_from_gguf(
            metadata,
            source,
            source.info("token_embd.weight").shape,
            source.read(ROPE_DIVISORS_TENSOR).ravel().tolist() if has_divisors else (),
        )
    except SpecError as error:
        raise LoadError(f"{path}: {error}") from None
    return LoadedModel(
        name=path.stem,
        path=path,
        spec=spec,
        weights=Weights(
            source,
            spec,
            "gguf",
            elsewhere=frozenset({ROPE_DIVISORS_TENSOR}),
        ),
        gguf_metadata=metadata,
    )
