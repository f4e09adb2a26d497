"""The search of those without a browser, and what both searches are made from."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from search_queries import QUERIES, right
from small_book import ROOT, write_book

from visualizers.levels.computed import ComputedFigures
from visualizers.site.project import load
from visualizers.site.searching import Index, distance, joined


class Idle(ComputedFigures):
    """The real figures, which a search must not compute."""

    def _compute(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} is computed")


@pytest.fixture(scope="module")
def book() -> Index:
    return Index(load(ROOT), Idle())


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_leads_to_the_right_page_first(book: Index, query: str) -> None:
    found = [document.location for document in book.search(query, 3)]
    assert right(query, found[0]), found


def test_each_term_each_section_and_each_source_is_a_document(book: Index) -> None:
    locations = [d.location for d in book.documents]
    assert len(locations) == len(set(locations))
    project = book.project
    assert {f"reference/glossary/#{t.anchor}" for t in project.glossary} <= set(locations)
    assert {f"reference/sources/#{key}" for key in project.bibliography} <= set(locations)
    assert {page.url for page in project.pages} <= set(locations)
    assert "foundations/kv-cache/#what-it-costs" in locations
    assert "foundations/kv-cache/#figure-kv-cache-size" in locations
    for document in book.documents:
        assert not document.parent or document.parent in locations[: locations.index(document.location)]


def test_a_query_with_operators_is_the_readers_own(book: Index) -> None:
    assert book.words.query('"block table" -prefix') == '"block table" -prefix'


def test_what_is_typed_so_far_is_not_mended(book: Index) -> None:
    assert book.words.mended("preem") == "preem"
    assert book.words.mended("preemtion") == "preemption"
    assert book.words.mended("gqa") == "gqa"


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [("ab", "ba", 1), ("decodign", "decoding", 1), ("a", "a", 0), ("abcd", "bcda", 2), ("", "a", 1)],
)
def test_distance_counts_letters(a: str, b: str, found: int) -> None:
    assert distance(a, b, 2) == distance(b, a, 2) == found


def test_phrases_are_one_however_they_are_written() -> None:
    assert joined(["kv", "caches"]) == joined(["kvcache"]) == "kvcache"
    assert joined(["less", "class"]) == "lessclass"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pages:\n  nothing: [x]\n", "search.yml:2: nothing: there is no such entry among the pages"),
        ("terms:\n  nothing: [x]\n", "search.yml:2: nothing: there is no such entry among the terms"),
        ("pages:\n  cache: x\n", "search.yml:2: cache: is 'x': give a list of texts"),
        ("pages: [x]\n", "`pages` is ['x']"),
        ("words: {}\n", "is not a map with `pages` and `terms`"),
        ("- : [", "search.yml"),
    ],
)
def test_what_is_wrong_with_the_words_of_readers_is_said(tmp_path: Path, text: str, said: str) -> None:
    root = write_book(tmp_path)
    (root / "handbook/search.yml").write_text(text)
    (problem,) = load(root, strict=False).problems
    assert said in str(problem)
