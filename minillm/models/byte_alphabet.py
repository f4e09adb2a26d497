"""The printable stand-ins that byte-level vocabularies write in place of bytes."""

from __future__ import annotations


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte -> the byte; `Ġ` is a space.

    Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(rest)}


_ALPHABET = byte_alphabet()


def from_alphabet(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for.

    Raises:
        KeyError: a character that is not one of the 256 stand-ins.
    """
    return bytes([_ALPHABET[character] for character in token])
