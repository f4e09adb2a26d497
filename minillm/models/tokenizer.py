"""What the engine asks of a tokenizer, and the one function that opens any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from minillm.models.bpe import ByteLevelBPE
from minillm.models.library_tokenizer import LibraryTokenizer
from minillm.models.tokenizer_formats import UnsupportedTokenizer

__all__ = ["ByteLevelBPE", "LibraryTokenizer", "Tokenizer", "UnsupportedTokenizer", "load_tokenizer"]


class Tokenizer(Protocol):
    """Text to ids and back. `eos_ids` end an answer; `adds_bos` says that `bos_id` comes first."""

    vocab_size: int
    bos_id: int | None
    eos_ids: frozenset[int]
    adds_bos: bool

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`, without BOS. `allow_special` is for templates, never for a user's own text."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """Raw bytes of one token, possibly part of a character; for special tokens their text."""
        ...

    def is_special(self, id: int) -> bool:
        """Whether `id` is a control token, which no text of a user turns into."""
        ...


def load_tokenizer(source: str | Path | Mapping[str, Any]) -> Tokenizer:
    """Open a Hugging Face directory, a `tokenizer.json`, or the metadata of a GGUF file.

    Byte-level BPE runs in pure Python; a `tokenizer.json` of another kind needs the package
    `tokenizers`. GGUF metadata has no such second way.

    Raises:
        FileNotFoundError: no `tokenizer.json` there.
        ImportError: another kind, and the package `tokenizers` is not installed.
        UnsupportedTokenizer: neither way can read it; the message names the part.
    """
    if isinstance(source, Mapping):
        if any(key.startswith("tokenizer.ggml.") for key in source):
            return ByteLevelBPE.from_gguf_metadata(source)
        return ByteLevelBPE.from_tokenizer_json(source)
    path = Path(source)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: a Hugging Face directory has its vocabulary there")
    try:
        return ByteLevelBPE.from_tokenizer_json(path)
    except UnsupportedTokenizer as reason:
        try:
            return LibraryTokenizer(path)
        except ImportError as error:
            raise ImportError(f"{error} ({reason})") from error
