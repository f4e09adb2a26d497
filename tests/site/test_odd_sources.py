"""Sources that an author would not write on purpose: each is a finding or a `SiteError`, never another exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_book import NAMES, CardboardFigures, write_book

from visualizers.site.build import Builder
from visualizers.site.check import check
from visualizers.site.errors import SiteError

PAGING = "handbook/serving/paging.md"
GLOSSARY = "handbook/glossary.yml"
FIGURE = "```figure\nblocks\nsize: 32\n```"
Edit = Callable[[Path], object]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


def sub(file: str, old: str, new: str) -> Edit:
    def edit(root: Path) -> None:
        text = (root / file).read_text(encoding="utf-8")
        assert old in text
        (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def put(file: str, data: bytes) -> Edit:
    return lambda root: (root / file).write_bytes(data)


def drop_line(start: str) -> Edit:
    def edit(root: Path) -> None:
        lines = (root / "mkdocs.yml").read_text(encoding="utf-8").splitlines(keepends=True)
        (root / "mkdocs.yml").write_text("".join(x for x in lines if not x.startswith(start)), encoding="utf-8")

    return edit


REFUSED: dict[str, tuple[Edit, str]] = {
    "two figures in one state": (sub(PAGING, FIGURE, f"{FIGURE}\n\n{FIGURE}"), "stands here twice in the same state"),
    "a NUL": (sub(PAGING, "is lost", "is \0 lost"), f"{PAGING}:15: has the control character U+0000"),
    "an escape": (sub(PAGING, "is lost", "is \x1b[31m lost"), "U+001B"),
    "a turned line": (sub(PAGING, "is lost", "is \u202e lost"), "U+202E"),
    "a large number": (sub(PAGING, "{= 2 * 5}", "{= twice(10**400)}"), "not a finite number"),
    "a large literal": (sub(PAGING, "{= 2 * 5}", "{= 1" + "0" * 390 + "}"), "not a finite number"),
    "an exponential": (sub(PAGING, "{= 2 * 5}", "{= exp(10000)}"), "failed: math range error"),
    "an open brace": (sub(PAGING, "x_1 * y^2", "\\frac{1"), "has a brace that is not closed"),
    "a closed brace": (sub(PAGING, "x_1 * y^2", "1}{2"), "has a brace that is not closed, or was not opened"),
    "no day": (sub(PAGING, "2026-11-29", "2026-02-31"), "front matter is not YAML: day is out of range"),
    "deep YAML": (sub(PAGING, "title: Paging & sharing", "title: " + "[" * 600), "nests too deeply"),
    "deep lists": (
        lambda root: (root / PAGING).open("a").write("".join(" " * 4 * depth + "- a\n" for depth in range(250))),
        "too deeply",
    ),
    "nav of a number": (sub("mkdocs.yml", "nav:", "nav: [5]\nold:"), "nav has 5"),
    "nav of two keys": (sub("mkdocs.yml", "nav:", "nav: [{a: [], b: []}]\nold:"), "nav has {'a': [], 'b': []}"),
    "nav that leads out": (sub("mkdocs.yml", "serving/paging.md", "../../etc/x.md"), "below handbook/ is needed"),
    "nav from the root": (sub("mkdocs.yml", "serving/paging.md", "/etc/passwd"), "below handbook/ is needed"),
    "nav of a text": (sub("mkdocs.yml", "nav:", "nav: x\nold:"), "nav is 'x'"),
    "a list of settings": (put("mkdocs.yml", b"[1]"), "is not a map"),
    "no settings": (put("mkdocs.yml", b""), "is not a map"),
    "open settings": (put("mkdocs.yml", b"a:\n  - ["), "mkdocs.yml:2: is not YAML"),
    "settings in another code": (put("mkdocs.yml", b"\xff\xfe"), "mkdocs.yml"),
    "no address": (drop_line("site_url"), "site_url is None"),
    "no name": (drop_line("site_name"), "site_name is None"),
    "an address that is none": (sub("mkdocs.yml", "site_url: ", "site_url: javascript:"), "is no address of a site"),
    "another theme": (sub("mkdocs.yml", "name: material", "name: nope"), "Unrecognised theme name: 'nope'"),
    "aliases of numbers": (sub(GLOSSARY, "[blocks, KV block]", "[5, [a]]"), "give a list of texts"),
    "an empty alias": (sub(GLOSSARY, "[blocks, KV block]", "['']"), "give a list of texts"),
    "a shared anchor": (sub(GLOSSARY, "term: block table", "term: Block!"), "its anchor is 'block'"),
    "no anchor": (sub(GLOSSARY, "term: block table", "term: 块"), "its anchor is ''"),
    "a year of truth": (sub("handbook/bibliography.yml", "year: 2024", "year: true"), "`year` is True"),
}
FOUND_BY_CHECK: dict[str, tuple[Edit, str]] = {
    "a notebook in another code": (put("notebooks/blocks.py", b"\xff"), "notebooks/blocks.py: is not UTF-8"),
    "an index in another code": (put("llms.txt", b"\xff"), "llms.txt: is stale"),
    "no version": (lambda root: (root / "pyproject.toml").unlink(), "pyproject.toml names no version"),
    "a version in another code": (put("pyproject.toml", b"\xff"), "pyproject.toml names no version"),
}


def builds(root: Path) -> str:
    """What a build says; empty where it made the site."""
    try:
        Builder(root, CardboardFigures(), NAMES, say=lambda _: None).build(root.parent / "out")
    except SiteError as error:
        return str(error)
    return ""


def checks(root: Path) -> str:
    try:
        return "\n".join(map(str, check(root, CardboardFigures(), NAMES)))
    except SiteError as error:
        return str(error)


@pytest.mark.parametrize("case", REFUSED)
def test_a_build_says_what_is_wrong_and_writes_nothing(case: str, book: Path) -> None:
    edit, message = REFUSED[case]
    edit(book)
    assert message in builds(book)
    assert sorted(path.name for path in book.parent.iterdir()) == ["book"]
    checks(book)  # finds it, or what else is wrong then; raises nothing


@pytest.mark.parametrize("case", FOUND_BY_CHECK)
def test_a_check_says_what_is_wrong(case: str, book: Path) -> None:
    edit, message = FOUND_BY_CHECK[case]
    edit(book)
    assert message in checks(book)


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""], ids=["byte-order mark", "none"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_what_editors_add_changes_nothing(mark: bytes, newline: bytes, book: Path) -> None:
    assert builds(book) == ""
    page = book.parent / "out" / "serving" / "paging" / "index.html"
    before = page.read_bytes()
    for file in (PAGING, GLOSSARY, "mkdocs.yml"):
        (book / file).write_bytes(mark + (book / file).read_bytes().replace(b"\n", newline))
    assert builds(book) == ""
    assert page.read_bytes() == before


@pytest.mark.parametrize("url", ["javascript:alert(1)", "x", "https://", "https://a b", 'https://a"b', "ftp://a"])
def test_an_address_that_is_none_is_refused(url: str, book: Path) -> None:
    with pytest.raises(SiteError, match="is no address of a site"):
        Builder(book, CardboardFigures(), NAMES, site_url=url, say=lambda _: None).build(book.parent / "out")
