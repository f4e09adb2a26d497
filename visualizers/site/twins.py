"""The Markdown twin of a page: made from its source, complete without a browser, links absolute.

A computed number keeps its text and gets a footnote with its formula and values; a cited one a footnote
with its source. A figure becomes its values in words and tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from visualizers.site import blocks, bookmap
from visualizers.site.figures import Figures
from visualizers.site.project import Page, Project, resolve_link, url_of
from visualizers.site.reference import Source
from visualizers.site.render import SOURCES_HEADING
from visualizers.site.resolve import Assumed, Cited, Marks
from visualizers.site.scan import Token

ADDRESSES = ("{x}.md", "{x}/index.md", "{x}/index.html.md")
# From a notebook's stem to its address below the site's root; None on a site that does not run it.
NotebookUrl = Callable[[str], str | None]
LICENCE = "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/"


def addresses(url: str) -> tuple[str, ...]:
    """The paths below the site's root at which the twin of the page at ``url`` lies."""
    x = url.rstrip("/")
    return tuple(a.format(x=x) for a in ADDRESSES) if x else ("index.md", "index.html.md")


def main_address(url: str) -> str:
    return addresses(url)[0]


def front_matter(fields: Mapping[str, object]) -> str:
    """YAML whose values are JSON, so that nothing in them can be misread."""
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value]
    return "---\n" + "\n".join(lines) + "\n---\n\n"


def page_fields(page: Page, project: Project, notebooks: NotebookUrl) -> dict[str, object]:
    """What a reader of the twin must know: where it lies, how old it is, what it rests on."""
    notebook = notebooks(page.meta.notebook) if page.meta.notebook else None
    meta = page.meta
    return {
        "title": page.label,
        "description": meta.description,
        "canonical": project.site_url + page.url,
        "updated": meta.updated.isoformat(),
        "ids": list(meta.ids),
        "depends_on": [twin_url(project.by_stem[stem].url, project) for stem in meta.depends_on],
        "sources": [project.bibliography[key].url for key in meta.sources],
        "notebook": f"{project.site_url}{notebook}" if notebook else None,
        "all_pages": f"{project.site_url}llms.txt",
        "licence": LICENCE,
    }


def twin_url(url: str, project: Project) -> str:
    """The absolute address of the twin of the page at ``url``."""
    return project.site_url + main_address(url)


def twin(page: Page, marks: Marks, project: Project, figures: Figures, notebooks: NotebookUrl) -> str:
    """The whole document."""
    writer = _Writer(page, marks, project, figures)
    body = "".join(writer.pieces()).strip("\n")
    footnotes = writer.footnotes()
    return (
        front_matter(page_fields(page, project, notebooks))
        + f"# {page.meta.title}\n\n"
        + body
        + "\n"
        + (f"\n{footnotes}" if footnotes else "")
    )


def source_markdown(source: Source) -> str:
    return f"{source.authors}. [{source.title}]({source.url}). {source.place}. Checked {source.checked}."


class _Writer:
    def __init__(self, page: Page, marks: Marks, project: Project, figures: Figures) -> None:
        self._page = page
        self._marks = marks
        self._project = project
        self._figures = figures
        self._notes: dict[str, str] = {}  # text of a footnote -> its label
        # The outline number makes labels unique in the book, so that pages can be read as one document.
        self._prefix = f"{page.number}-" if page.number else ""

    def pieces(self) -> Iterator[str]:
        for token in self._page.tokens:
            yield self._piece(token)

    def footnotes(self) -> str:
        """The sources as the page numbers them, then the formulas in the order of the text."""
        bibliography = self._project.bibliography
        lines = [
            f"[^{self._prefix}s{position}]: {source_markdown(bibliography[key])}"
            for position, key in enumerate(self._page.meta.sources, start=1)
        ]
        head = [SOURCES_HEADING, ""] if lines else []
        formulas = [f"[^{label}]: {text}" for text, label in self._notes.items()]
        return (
            "\n".join([*head, *lines, *([""] if lines and formulas else []), *formulas, ""])
            if lines or formulas
            else ""
        )

    def _piece(self, token: Token) -> str:
        match token.kind:
            case "computed" | "cited" | "assumed":
                return self._mark(token)
            case "link":
                return self._link(token)
            case "fence" if blocks.is_figure(token):
                block = blocks.parse(token)
                url = self._project.site_url + self._page.url
                return self._figures.markdown(block.name, block.state, url).strip("\n") + "\n"
            case "fence" if blocks.is_picture(token):
                return f"*Drawing: {blocks.picture(token, self._project.handbook).caption}*\n"
            case "fence" if blocks.is_begin(token):
                first = self._project.first_chapter
                return f"Begin with [{first.label}]({twin_url(first.url, self._project)}).\n"
            case "fence" if blocks.is_map(token):
                return bookmap.markdown(self._project)
        return token.raw

    def _mark(self, token: Token) -> str:
        mark = self._marks[token]
        if isinstance(mark, Cited):
            return mark.text + "".join(f"[^{self._prefix}s{position}]" for position in mark.positions)
        text = " ".join(mark.explanation.split("\n"))
        note = text if isinstance(mark, Assumed) else f"`{text}`"
        label = self._notes.setdefault(note, f"{self._prefix}n{len(self._notes) + 1}")
        return f"{mark.text}[^{label}]"

    def _link(self, token: Token) -> str:
        address = absolute(token.argument, self._page, self._project)
        return token.raw.replace(f"]({token.argument}", f"]({address}", 1)


def absolute(address: str, page: Page, project: Project) -> str:
    """The address of a link on ``page`` for a reader elsewhere: pages by their twins, files by their URL."""
    if "://" in address or address.startswith("mailto:"):
        return address
    _, sign, anchor = address.partition("#")
    target = resolve_link(address, page)
    if target.endswith(".md"):
        return twin_url(url_of(target), project) + sign + anchor
    return project.site_url + target + sign + anchor


def texts(documents: Sequence[str]) -> str:
    """Several twins as one document, each with its own front matter."""
    return "\n\n".join(document.strip("\n") for document in documents) + "\n"
