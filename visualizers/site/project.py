"""The handbook as it lies on disk: configuration, navigation, pages, bibliography and glossary, read once.

Everything that a page says about other pages (stems, terms, keys) is resolved against this.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from visualizers.site import frontmatter, yaml_text
from visualizers.site.errors import PageError, Problem, SiteError, shown_path
from visualizers.site.frontmatter import FrontMatter
from visualizers.site.reference import SearchWords, Source, Term, read_bibliography, read_glossary, read_search_words
from visualizers.site.scan import Token, tokens

HOME = "index.md"
# Characters that no reader sees: controls but tab and newline, and those that turn the direction of a line.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Files that a build writes beside the pages, to which a page may link.
SITE_FILES = ("llms.txt", "llms-full.txt")
GENERATED = frozenset(["reference/glossary.md", "reference/sources.md", "reference/map.md", "reference/changelog.md"])


@dataclass(frozen=True)
class Page:
    """One chapter page. ``path`` is relative to the handbook's folder, ``part`` the navigation's heading."""

    path: str
    file: str  # as an author would open it, for messages
    meta: FrontMatter
    body: str
    first_line: int
    part: str
    place: str = ""  # its number in this book, part and page, which has no gaps while the outline is not whole

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    @property
    def url(self) -> str:
        """The address below the site's root: ``kv-cache/paged-attention/``, empty for the home page."""
        return url_of(self.path)

    @property
    def number(self) -> str:
        """The first id of the outline that the page covers."""
        return self.meta.ids[0] if self.meta.ids else ""

    @property
    def label(self) -> str:
        """The title with its number, as the navigation shows it."""
        return f"{self.place} {self.meta.title}".strip()

    @cached_property
    def tokens(self) -> Sequence[Token]:
        return tokens(self.body, self.first_line)

    def headings(self) -> Iterator[tuple[int, str]]:
        """(level, Markdown text) of each heading, in order."""
        for line in re.finditer(r"^(#{1,6})[ \t]+(.+?)[ \t]*#*$", _without_fences(self.tokens), re.MULTILINE):
            yield len(line.group(1)), line.group(2)


@dataclass(frozen=True)
class Part:
    """One heading of the navigation and the paths below it."""

    title: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Project:
    """What a build reads. ``site_url`` ends in a slash."""

    root: Path
    config: Mapping[str, Any]
    site_url: str
    parts: tuple[Part, ...]
    pages: tuple[Page, ...]  # in the order of the navigation, home page first
    bibliography: Mapping[str, Source]
    glossary: tuple[Term, ...]
    search_words: SearchWords
    problems: tuple[Problem, ...] = field(default=())

    @cached_property
    def by_stem(self) -> Mapping[str, Page]:
        return {page.stem: page for page in self.pages if page.path != HOME}

    @cached_property
    def by_path(self) -> Mapping[str, Page]:
        return {page.path: page for page in self.pages}

    @property
    def chapters(self) -> tuple[Page, ...]:
        """The pages without the home page."""
        return tuple(page for page in self.pages if page.path != HOME)

    @property
    def first_chapter(self) -> Page:
        """Where reading begins: the first page that is not about the book itself, whose numbers begin with 0."""
        about = [page for page in self.chapters if not page.number.startswith("0.")]
        return next(iter(about or self.chapters), self.pages[0])

    @property
    def handbook(self) -> Path:
        return self.root / "handbook"

    @property
    def name(self) -> str:
        return str(self.config["site_name"])

    @property
    def repository(self) -> str:
        """The address of the source code, without a slash at the end."""
        return str(self.config["extra"]["repository"]).rstrip("/")


def url_of(path: str) -> str:
    """The address of a page's path below the site's root, as both generators lay it out."""
    stem = path.removesuffix(".md")
    if stem == "index" or stem.endswith("/index"):
        return stem.removesuffix("index")
    return f"{stem}/"


def resolve_link(address: str, page: Page) -> str:
    """The path of a relative link's target below the handbook, without its anchor; that of ``page`` for none."""
    path = address.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(page.path), path)) if path else page.path


def find_root(start: Path) -> Path:
    """The nearest folder upwards with a ``mkdocs.yml`` and a ``handbook``."""
    for folder in (start, *start.parents):
        if (folder / "mkdocs.yml").is_file() and (folder / "handbook").is_dir():
            return folder
    raise SiteError(f"{start} is not inside the project: run this where mkdocs.yml and handbook/ are, or give --root")


def load(root: Path, *, site_url: str | None = None, strict: bool = True) -> Project:
    """Reads the project. With ``strict`` any finding raises :class:`PageError`; else they lie in ``problems``."""
    config_file = root / "mkdocs.yml"
    config = _configuration(config_file)
    parts = _parts(config, config_file)
    bibliography, problems = read_bibliography(root / "handbook" / "bibliography.yml", root)
    glossary, found = read_glossary(root / "handbook" / "glossary.yml", root)
    problems += found
    pages = []
    titled = [part for part in parts if part.title]
    for part in parts:
        for place, path in enumerate(part.paths, start=1):
            if path in GENERATED:
                continue
            page, found = _read_page(root, path, part.title, f"{titled.index(part) + 1}.{place}" if part.title else "")
            problems += found
            if page is not None:
                pages.append(page)
    problems += _outside_navigation(root, parts)
    stems, terms = [Path(page.path).stem for page in pages if page.path != HOME], [term.term for term in glossary]
    search_words, found = read_search_words(root / "handbook" / "search.yml", root, stems, terms)
    problems += found
    if strict and problems:
        raise PageError(problems)
    url = (site_url or config["site_url"]).rstrip("/") + "/"
    if not re.fullmatch(r"https?://[^\s\"'<>?#\\]+", url):
        raise SiteError(f"{url!r} is no address of a site: give one that begins with https:// or http://")
    return Project(root, config, url, parts, tuple(pages), bibliography, glossary, search_words, tuple(problems))


def _configuration(file: Path) -> Mapping[str, Any]:
    """``mkdocs.yml``, with what this code reads of it in place."""
    try:
        config = yaml_text.load(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml_text.NotYamlError) as error:
        line = getattr(error, "line", 0)
        raise SiteError(f"{file}{f':{line}' if line else ''}: {error}") from error
    if not isinstance(config, Mapping):
        raise SiteError(f"{file}: is not a map of names to values")
    for name in ("site_name", "site_url"):
        if not isinstance(config.get(name), str):
            raise SiteError(f"{file}: {name} is {config.get(name)!r}, a text is needed")
    extra = config.get("extra")
    if not isinstance(extra, Mapping) or not isinstance(extra.get("repository"), str):
        raise SiteError(f"{file}: extra has no `repository`, the address of the source code")
    return config


def _parts(config: Mapping[str, Any], file: Path) -> tuple[Part, ...]:
    nav = config.get("nav") or []
    if not isinstance(nav, list):
        raise SiteError(f"{file}: nav is {nav!r}, a list is needed")
    parts: list[Part] = []
    for entry in nav:
        if isinstance(entry, str):
            parts.append(Part("", (entry,)))
            continue
        if not isinstance(entry, Mapping) or len(entry) != 1:
            raise SiteError(f"{file}: nav has {entry!r}: give a path, or one title with a list of paths")
        ((title, below),) = entry.items()
        if not isinstance(below, list) or not all(isinstance(path, str) for path in below):
            raise SiteError(f"{file}: nav of {title!r} must be a list of paths; titles stand in the pages")
        parts.append(Part(str(title), tuple(below)))
    for path in (path for part in parts for path in part.paths):
        if not path.endswith(".md") or posixpath.normpath(path) != path or path.startswith(("/", "../")):
            raise SiteError(f"{file}: nav has {path!r}, the path of a .md file below handbook/ is needed")
    return tuple(parts)


def _read_page(root: Path, path: str, part: str, place: str) -> tuple[Page | None, list[Problem]]:
    file = root / "handbook" / path
    shown = shown_path(file, root)
    if not file.is_file():
        return None, [Problem("mkdocs.yml", 0, f"nav names {path}, but there is no {shown}")]
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        return None, [Problem(shown, 0, f"is not UTF-8 at byte {error.start}: save it as UTF-8")]
    if found := _UNSEEN.search(text):
        line = text.count("\n", 0, found.start()) + 1
        return None, [Problem(shown, line, f"has the control character U+{ord(found[0]):04X}: remove it")]
    meta, problems = frontmatter.parse(text, shown, home=path == HOME)
    if meta is None:
        return None, problems
    _, body, first_line = frontmatter.split(text)
    return Page(path, shown, meta, body, first_line, part, place), problems


def _outside_navigation(root: Path, parts: Sequence[Part]) -> list[Problem]:
    named = {path for part in parts for path in part.paths}
    handbook = root / "handbook"
    return [
        Problem(shown_path(file, root), 0, "is not in the nav of mkdocs.yml: add it there")
        for file in sorted(handbook.rglob("*.md"))
        if (path := file.relative_to(handbook).as_posix()) not in named and not path.startswith("assets/")
    ]


def _without_fences(pieces: Sequence[Token]) -> str:
    return "".join("" if token.kind in ("fence", "math_block") else token.raw for token in pieces)
