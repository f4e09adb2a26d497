"""The reference files of the book: bibliography by key, glossary with its forms, words that readers search by."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visualizers.site import yaml_text
from visualizers.site.errors import Problem, shown_path

KINDS = ("paper", "docs", "code", "blog", "datasheet", "config")


@dataclass(frozen=True)
class Source:
    """One entry of ``bibliography.yml``. ``checked`` is the day on which its cited values were compared."""

    key: str
    title: str
    authors: str
    year: int
    publisher: str
    url: str
    checked: datetime.date
    kind: str
    line: int
    values: tuple[str, ...] = ()  # every number that pages cite, as they print it

    @property
    def short(self) -> str:
        """For a tooltip or a footnote: who, what, where and when checked."""
        return f"{self.authors_short} ({self.year}), {self.title}. {self.publisher}. Checked {self.checked}."

    @property
    def place(self) -> str:
        """Where and when it appeared; many a publisher's name has the year in it."""
        return self.publisher if str(self.year) in self.publisher else f"{self.publisher}, {self.year}"

    @property
    def authors_short(self) -> str:
        names = self.authors.split(", ")
        return self.authors if len(names) <= 2 else f"{names[0]} and others"


@dataclass(frozen=True)
class Term:
    """One entry of ``glossary.yml``. ``page`` is the stem of the page that explains it."""

    term: str
    aliases: tuple[str, ...]
    definition: str
    page: str
    line: int

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.term.lower()).strip("-")


@dataclass(frozen=True)
class SearchWords:
    """What readers type for a page, by its stem, and for a term, by its name, beyond what both say themselves."""

    pages: Mapping[str, tuple[str, ...]]
    terms: Mapping[str, tuple[str, ...]]


def read_search_words(
    file: Path, root: Path, stems: Collection[str], terms: Collection[str]
) -> tuple[SearchWords, list[Problem]]:
    """The words of ``search.yml``, which a book need not have, and what is wrong with the file."""
    shown = shown_path(file, root)
    if not file.exists():
        return SearchWords({}, {}), []
    raw, lines, problems = _load(file, shown)
    found: dict[str, dict[str, tuple[str, ...]]] = {"pages": {}, "terms": {}}
    if problems:
        return SearchWords({}, {}), problems
    if not isinstance(raw, dict) or set(raw) - set(found):
        return SearchWords({}, {}), [Problem(shown, 1, "is not a map with `pages` and `terms`")]
    for kind, known in (("pages", stems), ("terms", terms)):
        entries = raw.get(kind) or {}
        if not isinstance(entries, dict):
            problems.append(Problem(shown, 1, f"`{kind}` is {entries!r}: give a map of names to lists"))
            continue
        for name, forms in entries.items():
            line = _line_of(lines, f"  {name}:")
            if name not in known:
                problems.append(Problem(shown, line, f"{name}: there is no such entry among the {kind}"))
            elif not isinstance(forms, list) or not all(isinstance(f, str) and f.strip() for f in forms):
                problems.append(Problem(shown, line, f"{name}: is {forms!r}: give a list of texts"))
            else:
                found[kind][name] = tuple(forms)
    return SearchWords(found["pages"], found["terms"]), problems


def read_bibliography(file: Path, root: Path) -> tuple[Mapping[str, Source], list[Problem]]:
    """All sources by key, and what is wrong with the file."""
    shown = shown_path(file, root)
    raw, lines, problems = _load(file, shown)
    sources: dict[str, Source] = {}
    if problems:
        return sources, problems
    if not isinstance(raw, dict):
        return sources, [Problem(shown, 1, "is not a map of keys to sources")]
    for key, entry in raw.items():
        line = _line_of(lines, f"{key}:")
        types = {"title": str, "authors": str, "year": int, "publisher": str, "url": str, "kind": str}
        found = _entry_problems(entry, types | {"checked": datetime.date}, {"values": list})
        if not re.fullmatch(r"[a-z0-9-]+", str(key)):
            found.append("a key has small letters, digits and hyphens only")
        if not found and entry["kind"] not in KINDS:
            found = [f"kind is {entry['kind']!r}: choose from {', '.join(KINDS)}"]
        if not found and not entry["url"].startswith("https://"):
            found = [f"url is {entry['url']!r}: give an https:// address"]
        problems += [Problem(shown, line, f"{key}: {message}") for message in found]
        if not found:
            values = tuple(str(value) for value in entry.get("values") or ())
            sources[str(key)] = Source(**{**entry, "key": str(key), "line": line, "values": values})
    return sources, problems


def read_glossary(file: Path, root: Path) -> tuple[tuple[Term, ...], list[Problem]]:
    """All terms in the order of the file, and what is wrong with the file."""
    shown = shown_path(file, root)
    raw, lines, problems = _load(file, shown)
    terms: list[Term] = []
    if problems:
        return (), problems
    if not isinstance(raw, list):
        return (), [Problem(shown, 1, "is not a list of terms: write `- term: ...`")]
    seen: dict[str, str] = {}
    for position, entry in enumerate(raw, start=1):
        name = entry.get("term", f"entry {position}") if isinstance(entry, dict) else f"entry {position}"
        line = _line_of(lines, f"- term: {name}")
        found = _entry_problems(entry, {"term": str, "definition": str, "page": str}, {"aliases": list})
        if not found and not all(isinstance(form, str) and form.strip() for form in entry.get("aliases") or ()):
            found = [f"`aliases` is {entry['aliases']!r}: give a list of texts"]
        if not found:
            forms = [entry["term"], *(entry.get("aliases") or ())]
            found = [f"{form!r} is already a form of {seen[form]!r}" for form in forms if form in seen]
            seen |= dict.fromkeys(forms, entry["term"])
            term = Term(entry["term"], tuple(forms[1:]), entry["definition"].strip(), entry["page"], line)
            if not term.anchor or term.anchor in (other.anchor for other in terms):
                found.append(f"its anchor is {term.anchor!r}, which must be its own: use other letters of a to z")
            terms.append(term)
        problems += [Problem(shown, line, f"{name}: {message}") for message in found]
    return tuple(terms), problems


def _load(file: Path, shown: str) -> tuple[Any, list[str], list[Problem]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return None, [], [Problem(shown, 0, f"cannot be read: {error}")]
    try:
        return yaml_text.load(text), text.split("\n"), []
    except yaml_text.NotYamlError as error:
        return None, [], [Problem(shown, error.line, str(error))]


def _line_of(lines: list[str], start: str) -> int:
    return next((number for number, line in enumerate(lines, start=1) if line.startswith(start)), 1)


def _entry_problems(entry: Any, required: Mapping[str, type], optional: Mapping[str, type]) -> list[str]:
    if not isinstance(entry, dict):
        return [f"is {entry!r}: give it the fields {', '.join(required)}"]
    found = [f"has no `{name}`" for name in required if name not in entry]
    for name, value in entry.items():
        expected = required.get(name) or optional.get(name)
        if expected is None:
            found.append(f"has an unknown field `{name}`: known are {', '.join((*required, *optional))}")
        elif not isinstance(value, expected) or isinstance(value, bool) or value == "":
            found.append(f"`{name}` is {value!r}: give a {expected.__name__}")
    return found
