"""Finds the terms of the glossary in prose: the first occurrence in each section of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from visualizers.site.reference import Term


@lru_cache(maxsize=4)
def _pattern(terms: tuple[Term, ...]) -> tuple[re.Pattern[str], dict[str, Term]] | None:
    """One pattern for all forms, longest first, so that "block table" is never read as "block"."""
    forms = {form: term for term in terms for form in (term.term, *term.aliases)}
    if not forms:
        return None
    ordered = sorted(forms, key=len, reverse=True)
    pattern = "|".join(_form(form) for form in ordered)
    return re.compile(rf"(?<![\w/-])(?:{pattern})(?![\w/-])"), {_key(form): term for form, term in forms.items()}


def _form(form: str) -> str:
    words = r"\s".join(re.escape(word) for word in form.split(" "))
    # At the start of a sentence a word has a capital; abbreviations and names are matched as they are.
    if form[0].islower():
        words = f"[{form[0]}{form[0].upper()}]{words[1:]}"
    return words


def _key(text: str) -> str:
    words = " ".join(text.split())
    return words if words[1:2].isupper() else words[:1].lower() + words[1:]


class Linker:
    """Links terms on one page. ``section`` forgets what was linked: each section links a term anew."""

    def __init__(self, terms: Sequence[Term], link: Callable[[Term, str], str]) -> None:
        self._found = _pattern(tuple(terms))
        self._link = link
        self._linked: set[str] = set()

    def section(self) -> None:
        self._linked.clear()

    def __call__(self, text: str) -> str:
        """``text`` with ``link(term, words)`` in place of each first occurrence."""
        if self._found is None:
            return text
        pattern, by_key = self._found

        def replace(match: re.Match[str]) -> str:
            term = by_key[_key(match.group())]
            if term.term in self._linked:
                return match.group()
            self._linked.add(term.term)
            return self._link(term, match.group())

        return pattern.sub(replace, text)
