"""Checks of one page's source: figures, links, anchors, skeleton, marks that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from visualizers.site import blocks
from visualizers.site.errors import Problem
from visualizers.site.figures import Figures
from visualizers.site.mathml import MathError, to_mathml
from visualizers.site.numbers import unmarked
from visualizers.site.project import GENERATED, HOME, SITE_FILES, Page, Project, resolve_link
from visualizers.site.text import slugs

# The second-level headings of a chapter page, in order; "Sources" follows by itself.
SKELETON = (
    "The problem",
    "The mechanism",
    "What it costs",
    "When not to use it",
    "What it depends on",
    "Try it",
)
# Pages about the book itself have no mechanism and no costs.
_FREE_CHAPTERS = ("0.",)


def anchors(page: Page) -> frozenset[str]:
    """Every address on the page: its headings and, where it has any, its sources."""
    titles = [page.meta.title, *(text for _, text in page.headings())]
    if page.meta.sources:
        titles.append("Sources")
    return frozenset(slugs(titles)) | {f"source-{key}" for key in page.meta.sources}


def check(page: Page, project: Project, figures: Figures) -> Iterator[Problem]:
    """All findings about one page but those of its marks."""
    yield from _skeleton(page)
    yield from _figures(page, figures, project.handbook)
    yield from _links(page, project)
    yield from _mathematics(page)
    for line, quantity in unmarked(page.tokens):
        yield Problem(
            page.file,
            line,
            f"{' '.join(quantity.text.split())!r} has neither a formula nor a source: "
            "write [text]{= formula} or [text]{@ key}",
        )
    cited = {key.strip() for token in page.tokens if token.kind == "cited" for key in token.argument.split(",")}
    for key in page.meta.sources:
        if key not in project.bibliography:
            yield Problem(page.file, 0, f"sources names {key!r}, which is not in handbook/bibliography.yml")
        elif key not in cited:
            yield Problem(page.file, 0, f"sources names {key!r}, but the text cites it nowhere: cite it or drop it")


def _skeleton(page: Page) -> Iterator[Problem]:
    headings = list(page.headings())
    if any(level == 1 for level, _ in headings):
        yield Problem(page.file, 0, "has a first-level heading: the title of the front matter is the only one")
    second = [text for level, text in headings if level == 2]
    if "Sources" in second:
        yield Problem(page.file, 0, "has a heading Sources: that section is made from `sources`")
    if not page.meta.ids or page.number.startswith(_FREE_CHAPTERS):
        return
    missing = [title for title in SKELETON if title not in second]
    if missing:
        yield Problem(page.file, 0, f"lacks the heading `## {missing[0]}`: a chapter has {', '.join(SKELETON)}")
    elif [title for title in second if title in SKELETON] != list(SKELETON):
        yield Problem(page.file, 0, f"has its headings in another order than {', '.join(SKELETON)}")


def _figures(page: Page, figures: Figures, handbook: Path) -> Iterator[Problem]:
    stems: list[str] = []
    meanings: dict[str, tuple[str, str]] = {}  # input -> its meaning, and the first figure of the page that has it
    seen: list[blocks.FigureBlock] = []
    for token in page.tokens:
        if blocks.is_picture(token):
            try:
                blocks.picture(token, handbook)
            except blocks.BlockError as error:
                yield Problem(page.file, token.line, str(error))
        if not blocks.is_figure(token):
            continue
        try:
            block = blocks.parse(token, seen)
        except blocks.BlockError as error:
            yield Problem(page.file, token.line, str(error))
            continue
        seen.append(block)
        stems.append(block.name.replace("-", "_"))
        try:
            figures.html(block.name, block.state, "")
        except (LookupError, ValueError) as error:
            yield Problem(page.file, token.line, str(error))
            continue
        for name, meaning in figures.meanings(block.name).items():
            other, first = meanings.setdefault(name, (meaning, block.name))
            if other != meaning:
                yield Problem(
                    page.file,
                    token.line,
                    f"{block.name} and {first} both have an input {name!r}, and it means {meaning!r} in one and "
                    f"{other!r} in the other: on one page the address moves both, so rename one",
                )
    wanted = page.meta.notebook
    if wanted and wanted not in stems:
        yield Problem(page.file, 0, f"notebook names {wanted!r}, but no figure of the page is its")
    if stems and not wanted and page.path != HOME:
        yield Problem(page.file, 0, f"has the figure of {stems[0]!r}, but its front matter names no notebook")


def _links(page: Page, project: Project) -> Iterator[Problem]:
    for token in page.tokens:
        if token.kind == "link" and (message := _link(token.argument, page, project)):
            yield Problem(page.file, token.line, message)


def _link(address: str, page: Page, project: Project) -> str:
    if address.startswith("https://"):
        return ""
    if "://" in address or address.startswith(("/", "mailto:")):
        return f"the link {address!r} is neither https:// nor relative: links within the book are paths to .md files"
    target, anchor = resolve_link(address, page), address.partition("#")[2]
    if target in GENERATED or target in SITE_FILES:
        return ""  # their anchors are made from terms and keys, and checked in the built site
    if target not in project.by_path:
        if target.startswith("assets/") and (project.handbook / target).is_file():
            return ""
        return f"the link {address!r} leads to {target}, which is no page of the nav"
    if anchor and anchor not in anchors(project.by_path[target]):
        return f"the link {address!r} names an anchor that {target} does not have"
    return ""


def _mathematics(page: Page) -> Iterator[Problem]:
    for token in page.tokens:
        if token.kind in ("math", "math_block"):
            try:
                to_mathml(token.text, block=token.kind == "math_block")
            except MathError as error:
                yield Problem(page.file, token.line, str(error))


def embedded(pages: Sequence[Page]) -> frozenset[str]:
    """The names of all visualizers that some page shows."""
    return frozenset(block.name for page in pages for _, block in blocks.figures(page.tokens))
