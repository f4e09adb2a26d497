"""What a reader's or an agent's search finds: the documents of the book, and the query in the book's own words.

A page is a document with its sections; a figure, a term of the glossary and a source are documents of their own.
Topics have keys: a query that names a topic in any of its ways ("json mode", "jsonmode", "JSON modes") asks for the
key, which only the documents about it have. ``handbook/assets/js/search.js`` is the twin of :class:`Words` in the
page's search; a test compares the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from visualizers.site import blocks, generated
from visualizers.site.figures import Figures
from visualizers.site.project import HOME, Page, Project
from visualizers.site.scan import Token
from visualizers.site.text import content, plain, slugs

# How often a document has the key of its topic, which is how much it is about it.
_OF_PAGE, _OF_TERM, _OF_TERMS_PAGE = 3, 2, 1
_KEY_WEIGHT, _DEFINE_WEIGHT = 8, 24
_SOURCE_BOOST = 0.01  # a title of the bibliography never stands above a page
FIELDS = {"title": {"boost": 1e3}, "text": {"boost": 1.0}, "keys": {"boost": 1e6}}

# Words of questions that say nothing of what is asked for.
DROPPED = frozenset(
    """a an and any are as at be best between by can compare compared could define definition difference differences do
    does explain explained for from get give good have how i if in into is it its like many me mean meaning means much
    my need needed of on or our should show so than that the their then there they this to use used using versus vs
    want was we what whats when where which who why will with work works would you your""".split()  # noqa: SIM905
)
_DEFINES = re.compile(r"^\W*(what(s|'s)?\s+(is|are|does)|whats|what's|define)\b|\b(mean|meaning|definition)\b")
_OPERATORS = re.compile(r'["+~^:*]|(^|\s)-\w')
_WORD = re.compile(r"[a-z0-9]+")
_SHORTEST = 4  # letters of a word that may be a misspelling


@dataclass(frozen=True)
class Document:
    """One result. ``parent`` is the location of the page it is a section of, "" for what stands alone."""

    location: str
    title: str
    text: str
    keys: str = ""
    parent: str = ""
    boost: float = 1.0

    def record(self) -> dict[str, Any]:
        """As the page's search reads it: texts are HTML there."""
        found: dict[str, Any] = {"location": self.location, "title": content(self.title), "text": content(self.text)}
        if self.keys:
            found["keys"] = self.keys
        if "#" in self.location and not self.parent:
            found["alone"] = True
        if self.boost != 1:
            found["boost"] = self.boost
        return found


def documents(project: Project, figures: Figures) -> tuple[Document, ...]:
    """All documents, in the order of the navigation; a page before its sections."""
    found: list[Document] = []
    for page in project.pages:
        found += _page(page, project, figures)
    found += [Document(page.url, page.title, page.description) for page in generated.pages(project)]
    found += (_term(term, project) for term in project.glossary)
    found += [
        Document(
            f"reference/sources/#{source.key}",
            source.title,
            f"{source.authors}. {source.place}.",
            boost=_SOURCE_BOOST,
        )
        for source in project.bibliography.values()
    ]
    return tuple(found)


def _page(page: Page, project: Project, figures: Figures) -> Iterator[Document]:
    about = [term for term in project.glossary if term.page == page.stem]
    keys = [_key("page", page.stem)] * _OF_PAGE + [_key("term", t.anchor) for t in about] * _OF_TERMS_PAGE
    title = page.meta.title
    lead, *sections = _sections(page)
    yield Document(page.url, title, f"{page.meta.description} {lead[1]}".strip(), " ".join(keys))
    anchors = slugs([title, *(heading for heading, _ in sections)])[1:]
    for anchor, (heading, text) in zip(anchors, sections, strict=True):
        yield Document(f"{page.url}#{anchor}", plain(heading), text, parent=page.url)
    seen: set[str] = set()
    for _, block in blocks.figures(page.tokens):
        if block.name not in seen and page.path != HOME:
            seen.add(block.name)
            anchor, title, summary = figures.about(block.name, block.state)
            yield Document(f"{page.url}#{anchor}", f"Figure: {title}", summary, parent=page.url)


def _sections(page: Page) -> list[tuple[str, str]]:
    """(heading, text) of the part before the first heading, whose heading is empty, and of each section."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for heading, line in _lines(page.tokens):
        if heading:
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return [(heading, " ".join("".join(text).split())) for heading, text in found]


def _lines(tokens: Sequence[Token]) -> Iterator[tuple[bool, str]]:
    """The readable text of tokens, headings whole."""
    heading: list[str] = []
    for token in tokens:
        if token.heading:
            heading.append(token.raw)
            if token.raw.endswith("\n"):
                yield True, "".join(heading).strip().lstrip("#").strip()
                heading = []
        elif token.kind == "fence":
            yield False, "" if token.argument in ("figure", "map", "begin", "picture") else f" {token.text} "
        elif token.kind == "text":
            yield False, re.sub(r"[*_|]|^[>#-]+ |:?-{3,}:?", " ", token.raw, flags=re.MULTILINE)
        elif token.kind not in ("html", "url"):
            yield False, plain(token.text)


def _term(term: Any, project: Project) -> Document:
    key = _key("term", term.anchor)
    page = project.by_stem.get(term.page)
    see = f" See {page.label}." if page else ""
    also = f" Also: {', '.join(term.aliases)}." if term.aliases else ""
    keys = " ".join([key] * _OF_TERM + [_key("define", term.anchor)] * _OF_TERM)
    return Document(f"reference/glossary/#{term.anchor}", term.term, f"{term.definition}{see}{also}", keys)


def _key(kind: str, name: str) -> str:
    """A word that no text has. It ends in no ending that a stemmer would cut."""
    return f"{kind}_{name.replace('-', '_')}_q"


def joined(words: Iterable[str]) -> str:
    """Words as the key of a phrase: without spaces and plurals, so that "KV caches" and "kvcache" are one."""
    return "".join(w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words)


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about; all of them where none does."""
    words = _WORD.findall(text.lower())
    return [w for w in words if w not in DROPPED] or words


def named(project: Project) -> Iterator[tuple[str, list[str]]]:
    """Each way to name a topic, and its keys: titles, terms with their other forms, and ``search.yml``."""
    pages: dict[str, str] = {}  # phrase -> key of the page whose name it is
    for page in project.chapters:
        key = _key("page", page.stem)
        for phrase in (page.meta.title, page.stem):
            pages[joined(content_words(phrase))] = key
            yield phrase, [key]
        for phrase in project.search_words.pages.get(page.stem, ()):
            yield phrase, [key]
    for term in project.glossary:
        own = pages.get(joined(content_words(term.term)))  # a term that has a page of its own
        for phrase in (term.term, *term.aliases, *project.search_words.terms.get(term.term, ())):
            yield phrase, [*([own] if own else []), _key("term", term.anchor)]


@dataclass(frozen=True)
class Words:
    """The words of the book, by which a query is read."""

    phrases: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]  # how often a word stands in the documents
    spelt: tuple[str, ...]  # words of phrases, which need stand in no document
    longest: int  # words of the longest phrase

    @classmethod
    def of(cls, found: Iterable[Document], topics: Iterable[tuple[str, Sequence[str]]]) -> Words:
        counts = Counter(w for d in found for w in _WORD.findall(f"{d.title} {d.text}".lower()))
        phrases: dict[str, list[str]] = {}
        spelt: set[str] = set()
        longest = 1
        for phrase, keys in topics:
            words = content_words(phrase)
            known = phrases.setdefault(joined(words), [])
            known += [key for key in keys if key not in known]
            spelt |= {*words, joined(words)}
            longest = max(longest, len(words))
        counts.update(spelt)
        return cls(phrases, counts, tuple(sorted(spelt)), longest)

    def query(self, text: str) -> str:
        """The query in the book's words: misspellings mended, then the keys of the topics that it names."""
        if _OPERATORS.search(text):
            return text
        words = [self.mended(w) for w in content_words(text)]
        keys: list[str] = []
        at = 0
        while at < len(words):
            for end in range(min(len(words), at + self.longest), at, -1):
                if topics := self.phrases.get(joined(words[at:end])):
                    keys += [k for k in topics if k not in keys]
                    at = end - 1
                    break
            at += 1
        weighed = [f"{key}^{_KEY_WEIGHT}" for key in keys]
        if _DEFINES.search(text.lower()):
            defined = [k.replace("term_", "define_", 1) for k in keys if k.startswith("term_")]
            weighed += [f"{key}^{_DEFINE_WEIGHT}" for key in defined]
        return " ".join([*(w for w in words if len(w) > 1 or len(words) == 1), *weighed])

    def mended(self, word: str) -> str:
        """The nearest word of the book for one that is none, nor the beginning of one."""
        if len(word) < _SHORTEST or not word.isalpha() or self._begins(word):
            return word
        most = 1 if len(word) <= 5 else 2
        near = [(distance(word, w, most), w[0] != word[0], -n, w) for w, n in self.counts.items() if len(w) >= 4]
        best = min((c for c in near if c[0] <= most), default=None)
        return best[3] if best else word

    def _begins(self, word: str) -> bool:
        return word in self.counts or any(w.startswith(word) for w in self.counts)


def distance(a: str, b: str, most: int) -> int:
    """Letters to insert, drop, change or swap with a neighbour on the way from ``a`` to ``b``; at most ``most`` + 1."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        two, before, row = before, row, [i]
        for j, y in enumerate(b, start=1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, two[j - 2] + 1)
            row.append(best)
    return min(row[-1], most + 1)


@dataclass(frozen=True)
class Index:
    """The search itself, for those who have no browser."""

    project: Project
    figures: Figures

    @cached_property
    def documents(self) -> tuple[Document, ...]:
        return documents(self.project, self.figures)

    @cached_property
    def words(self) -> Words:
        return Words.of(self.documents, named(self.project))

    @cached_property
    def record(self) -> dict[str, Any]:
        """``search/search_index.json``: the documents, and by what a query is read."""
        words = self.words
        known = {
            "phrases": words.phrases,
            "spelt": words.spelt,
            "longest": words.longest,
            "dropped": sorted(DROPPED),
        }
        config = {"lang": ["en"], "separator": r"[\s\-]+", "pipeline": ["stopWordFilter"], "fields": FIELDS}
        return {"config": {**config, "words": known}, "docs": [d.record() for d in self.documents]}

    def search(self, text: str, limit: int = 10) -> list[Document]:
        """The documents that match best, by the sum of the weights of the words they have."""
        terms = [part.partition("^") for part in self.words.query(text).split()]
        scored = [(self._score(d, terms), -n) for n, d in enumerate(self.documents)]
        return [self.documents[-n] for score, n in sorted(scored, reverse=True)[:limit] if score > 0]

    def _score(self, document: Document, terms: Sequence[tuple[str, str, str]]) -> float:
        title, keys = document.title.lower(), document.keys.split()
        text = document.text.lower()
        score = 0.0
        for word, _, weight in terms:
            if weight:
                score += 1e3 * float(weight) * (keys.count(word) / (1.2 + keys.count(word)))  # as the page's search
            else:
                rare = 1 / (1 + self.words.counts.get(word, 0)) ** 0.5
                score += rare * (10 * (word in title) + min(text.count(word), 3))
        return score * document.boost
