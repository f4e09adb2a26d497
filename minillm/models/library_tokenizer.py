"""Any `tokenizer.json` through Hugging Face's `tokenizers`, behind the same four methods.

Needs the extra: `pip install "inference-handbook[torch]"`. The package does not run in a browser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minillm.loaders.files import read_json
from minillm.models.byte_alphabet import from_alphabet
from minillm.models.tokenizer_formats import UnsupportedTokenizer, read_ends

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class LibraryTokenizer:
    """Reads `tokenizer.json`; its neighbours name BOS and EOS as for `ByteLevelBPE`.

    Raises:
        ImportError: the package `tokenizers` is not installed; the message names the extra.
        UnsupportedTokenizer: the bytes of single tokens are unknown, so text could not be streamed.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(
                f"{path} needs the package 'tokenizers', which is not installed: "
                'pip install "inference-handbook[torch]"'
            ) from error
        data = read_json(path)
        try:
            self._inner: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises no other class
            raise UnsupportedTokenizer(f"{path}: the package 'tokenizers' cannot read it either: {error}") from error
        self._special = {e["id"]: e["content"] for e in data.get("added_tokens") or [] if e.get("special")}
        self._added = {e["id"]: e["content"] for e in data.get("added_tokens") or []}
        self._to_bytes = _bytes_rule(data.get("decoder"), path)
        self.vocab_size: int = 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)
        ends = read_ends(path.parent, {text: id for id, text in self._special.items()}, self.vocab_size)
        self.bos_id: int | None = ends["bos_id"]
        self.eos_ids: frozenset[int] = ends["eos_ids"]
        # A post-processor may put BOS first whatever tokenizer_config.json says.
        opening = self._inner.encode("", add_special_tokens=True).ids
        self.adds_bos: bool = ends["adds_bos"] or (self.bos_id is not None and opening[:1] == [self.bos_id])

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`, without BOS. `allow_special` is for templates, never for a user's own text."""
        self._inner.encode_special_tokens = not allow_special
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_bytes(self, id: int) -> bytes:
        """Raw bytes of one token, possibly part of a character; for special tokens their text.

        Raises:
            ValueError: no such token.
        """
        if id in self._added:
            return str(self._added[id]).encode("utf-8")
        token = self._inner.id_to_token(id)
        if token is None:
            raise ValueError(f"token id {id} is outside the vocabulary of {self.vocab_size} tokens")
        return self._to_bytes(token)

    def is_special(self, id: int) -> bool:
        """Whether `id` is a control token, which no text of a user turns into."""
        return id in self._special


def _bytes_rule(decoder: Any, path: Path) -> Callable[[str], bytes]:
    """How a token's name becomes bytes, by the kind of decoder in `tokenizer.json`."""
    decoder = decoder or {}
    parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise UnsupportedTokenizer(
        f"{path}: decoder of type {decoder.get('type')!r}; known are ByteLevel, ByteFallback and Metaspace"
    )


def _byte_level_bytes(token: str) -> bytes:
    """The alphabet's bytes; a token with another character is its own text, as in the package."""
    try:
        return from_alphabet(token)
    except KeyError:
        return token.encode("utf-8")


def _sentencepiece_bytes(token: str) -> bytes:
    """`▁` is a space, `<0x41>` the byte 65, all else itself (SentencePiece)."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode("utf-8")
