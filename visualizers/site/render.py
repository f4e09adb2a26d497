"""Turns a page into Markdown with HTML in it that any Markdown generator renders the same.

Links in that HTML are absolute, since some generators rewrite relative ones; the last pass makes them relative.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from visualizers.site import blocks, bookmap
from visualizers.site.errors import PageError, Problem
from visualizers.site.figures import Figures
from visualizers.site.mathml import MathError, to_mathml
from visualizers.site.project import HOME, SITE_FILES, Page, Project, resolve_link
from visualizers.site.reference import Source, Term
from visualizers.site.resolve import Assumed, Cited, Mark, Marks
from visualizers.site.scan import Token
from visualizers.site.terms import Linker
from visualizers.site.text import address, attribute, content, relative

SOURCES_HEADING = "## Sources"
START = "Start"  # the home page in the navigation: its own title is that of the book


@dataclass(frozen=True)
class Context:
    """What is the same for all pages of one build."""

    project: Project
    figures: Figures


def render(page: Page, marks: Marks, context: Context) -> str:
    """The page for the generator: front matter, one first-level heading, the body, its sources."""
    body = "".join(_Renderer(page, marks, context).pieces())
    home = page.path == HOME
    parts = [front_matter(START if home else page.label, page.meta.description, home=home)]
    parts.append(f"# {content(page.meta.title)}\n\n")
    parts.append(body.strip("\n") + "\n")
    if page.meta.sources:
        parts.append(f"\n{SOURCES_HEADING}\n\n" + source_list(page, context.project) + "\n")
    return "".join(parts)


def front_matter(title: str, description: str, *, home: bool = False) -> str:
    """What the generators read of a page. JSON strings are YAML strings, whatever is in them."""
    hidden = "hide: [toc]\n" if home else ""
    return (
        f"---\ntitle: {json.dumps(title, ensure_ascii=False)}\n"
        f"description: {json.dumps(description, ensure_ascii=False)}\n{hidden}---\n\n"
    )


def source_list(page: Page, project: Project) -> str:
    """The numbered list of the page's sources, each the target of its citations."""
    items = []
    for key in page.meta.sources:
        source = project.bibliography[key]
        items.append(f'<li id="source-{key}">{source_html(source)}</li>')
    return '<ol class="hb-sources">\n' + "\n".join(items) + "\n</ol>\n"


def source_html(source: Source) -> str:
    return (
        f'{content(source.authors)}. <a href="{address(source.url)}"><cite>{content(source.title)}</cite></a>. '
        f"{content(source.place)}. "
        f'<span class="hb-checked">Checked {source.checked}.</span>'
    )


class _Renderer:
    def __init__(self, page: Page, marks: Marks, context: Context) -> None:
        self._page = page
        self._marks = marks
        self._context = context
        self._linker = Linker(context.project.glossary, self._term)
        self._problems: list[Problem] = []
        self._figures_seen: list[blocks.FigureBlock] = []

    def pieces(self) -> Iterator[str]:
        for token in self._page.tokens:
            if token.heading and token.heading <= 2 and token.raw.startswith("#"):
                self._linker.section()
            try:
                yield self._piece(token)
            except (MathError, blocks.BlockError, ValueError, LookupError) as error:
                self._problems.append(Problem(self._page.file, token.line, str(error)))
        if self._problems:
            raise PageError(self._problems)

    def _piece(self, token: Token) -> str:
        match token.kind:
            case "text":
                return token.raw if token.heading else self._linker(token.raw)
            case "computed" | "cited" | "assumed":
                return _mark_html(self._marks[token])
            case "link" if (target := resolve_link(token.argument, self._page)) in SITE_FILES:
                return f'<a href="{address(self._context.project.site_url + target)}">{content(token.text)}</a>'
            case "math":
                return to_mathml(token.text)
            case "math_block":
                return (
                    f'\n{token.indent}<div class="hb-math" tabindex="0">{to_mathml(token.text, block=True)}</div>\n\n'
                )
            case "fence" if blocks.is_figure(token):
                return self._figure(token)
            case "fence" if blocks.is_picture(token):
                return self._picture(token)
            case "fence" if blocks.is_map(token):
                return f"\n{bookmap.drawing(self._context.project)}\n\n"
            case "fence" if blocks.is_begin(token):
                return self._begin()
        return token.raw

    def _begin(self) -> str:
        project = self._context.project
        first = project.first_chapter
        href = address(project.site_url + first.url)
        return f'\n<p class="hb-begin"><a href="{href}">Begin with {content(first.label)}</a></p>\n\n'

    def _figure(self, token: Token) -> str:
        block = blocks.parse(token, self._figures_seen)
        self._figures_seen.append(block)
        html = self._context.figures.html(block.name, block.state, relative("", self._page.url))
        # The generators' HTML block ends at a blank line unless a block element encloses it.
        return f'\n<div class="hb-figure-slot" data-search-exclude>\n{html.strip()}\n</div>\n\n'

    def _picture(self, token: Token) -> str:
        """The drawing inline, so that it follows the theme."""
        handbook = self._context.project.handbook
        picture = blocks.picture(token, handbook)
        svg = picture.file(handbook).read_text(encoding="utf-8").strip()
        # It scrolls where a screen is narrow, by keyboard, too.
        opening = '<figure class="hb-picture" tabindex="0">'
        return f"\n{opening}\n{svg}\n<figcaption>{content(picture.caption)}</figcaption>\n</figure>\n\n"

    def _term(self, term: Term, words: str) -> str:
        href = address(f"{self._context.project.site_url}reference/glossary/#{term.anchor}")
        return f'<a class="hb-term" href="{href}" title="{attribute(term.definition)}">{words}</a>'


def _mark_html(mark: Mark) -> str:
    text = content(mark.text).replace(" ", "&nbsp;") if len(mark.text) <= 16 else content(mark.text)
    tip = attribute(mark.explanation)
    if not isinstance(mark, Cited):
        kind = " hb-assumed" if isinstance(mark, Assumed) else ""
        return f'<span class="hb-num{kind}" tabindex="0" title="{tip}">{text}</span>'
    links = ",".join(
        f'<a href="#{address(f"source-{source.key}")}" aria-label="source {position}">{position}</a>'
        for source, position in zip(mark.sources, mark.positions, strict=True)
    )
    return f'<span class="hb-num hb-cited" tabindex="0" title="{tip}">{text}</span><sup class="hb-ref">{links}</sup>'
