"""Cuts text into the words that byte-pair merges never cross: GPT-2's pattern, by hand.

The pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`
(GPT-2, `encoder.py`). The standard library's `re` knows no `\\p{L}`, and the package `regex` is not
pure Python, so text beyond ASCII is scanned character by character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from unicodedata import category

# What \s means in Unicode: the property White_Space. `str.isspace` also counts U+001C to U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LETTER, _NUMBER, _SPACE, _OTHER = "L", "N", "S", "O"


class _CharacterClasses(dict[str, str]):
    """Character -> one of the four classes of the pattern, remembered once looked up."""

    def __missing__(self, character: str) -> str:
        major = category(character)[0]
        found = major if major in (_LETTER, _NUMBER) else _OTHER
        self[character] = found
        return found


_CLASS = _CharacterClasses(dict.fromkeys(_WHITE_SPACE, _SPACE))
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# The same pattern for text that is all ASCII, where [a-zA-Z] and [0-9] are all there is.
_ASCII = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+", re.ASCII)

Split = Callable[[str], Iterator[str]]


def split_gpt2(text: str) -> Iterator[str]:
    """Words of GPT-2's pattern, in order; joined they are `text` again."""
    if text.isascii():
        for match in _ASCII.finditer(text):
            yield match.group()
        return
    at, end = 0, len(text)
    while at < end:
        stop = _word_end(text, at, end)
        yield text[at:stop]
        at = stop


def _word_end(text: str, at: int, end: int) -> int:
    """Where the word that begins at `at` ends."""
    if text[at] == "'":
        for contraction in _CONTRACTIONS:
            if text.startswith(contraction, at):
                return at + len(contraction)
    kind = _CLASS[text[at]]
    # One space, and only U+0020, leads the word that follows it.
    first = at
    if text[at] == " " and at + 1 < end and _CLASS[text[at + 1]] != _SPACE:
        first, kind = at + 1, _CLASS[text[at + 1]]
    stop = first + 1
    while stop < end and _CLASS[text[stop]] == kind:
        stop += 1
    # `\\s+(?!\\S)`: a run of spaces before a word leaves its last one for that word.
    if kind == _SPACE and stop < end and stop - at > 1:
        stop -= 1
    return stop


def split_digits_then_gpt2(text: str) -> Iterator[str]:
    """Every numeric character alone, the text between by GPT-2's pattern (SmolLM2, StarCoder).

    Numeric is Unicode's category N: a fraction or a Roman numeral sign stands alone as well.
    """
    start = 0
    for at, character in enumerate(text):
        if _CLASS[character] == _NUMBER:
            if start < at:
                yield from split_gpt2(text[start:at])
            yield character
            start = at + 1
    if start < len(text):
        yield from split_gpt2(text[start:])
