"""The one pass over the HTML of either generator: what a page says about itself, and its actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from visualizers.site import twins
from visualizers.site.errors import SiteError
from visualizers.site.project import HOME, Project
from visualizers.site.text import relative


@dataclass(frozen=True)
class Facts:
    """What the pass must know of one page."""

    path: str
    url: str
    title: str
    description: str
    number: str = ""
    part: str = ""
    updated: str = ""
    changed: str = ""  # the day of a page that is made of others
    source_file: str = ""  # where the page is written, "" for generated pages

    @property
    def label(self) -> str:
        return f"{self.number} {self.title}".strip()


WORD_LETTERS = 24  # of code that stays on one line: the narrowest page holds that many
FONT = "assets/fonts/source-serif-4.woff2"

_TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)
# What the pass sets itself, and what no reader needs.
_DROPPED = re.compile(r'[ \t]*<(?:meta name="(?:description|generator)"|link rel="canonical")[^>]*>\n?')
_HEADING = re.compile(r"(<h1[^>]*>.*?</h1>)", re.DOTALL)
_SEARCH = 'data-md-component="search" role="dialog"'
_CODE = re.compile(r"(?<!<pre>)<code>([^<]*-[^<]*)</code>")
# A corner without a word heads nothing; a heading that is a formula is read by its source.
_EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
_MATH_HEADER = re.compile(r'<th([^>]*)>(<math alttext="([^"]*)"[^>]*>)(?=(?:(?!</th>).)*</math></th>)', re.DOTALL)
_NEXT = re.compile(r'<a [^>]*class="md-footer__link md-footer__link--next"[^>]*?(?P<inside>>.*?</a>)', re.DOTALL)
_ELLIPSIS = re.compile(r'(<div class="md-ellipsis">)[^<]*(</div>)')
_NOT_FOUND = re.compile(r"<h1>404 - Not found</h1>")


def page(html: str, facts: Facts, project: Project) -> str:
    """The finished HTML of one page."""
    here = facts.url
    twin = relative(twins.main_address(here), here)
    name = project.name if facts.path == HOME else f"{facts.title} · {project.name}"
    head = "".join(
        f"    {line}\n"
        for line in (
            f'<meta name="description" content="{escape(facts.description)}">',
            f'<link rel="canonical" href="{escape(project.site_url + here)}">',
            f'<link rel="alternate" type="text/markdown" title="Markdown" href="{escape(twin)}">',
            f'<link rel="alternate" type="application/atom+xml" title="Changes" href="{relative("feed.xml", here)}">',
        )
    )
    html = _CODE.sub(lambda m: f"<code>{_whole_words(m[1])}</code>", _relative_links(html, here, project))
    html = _MATH_HEADER.sub(r'<th\1 aria-label="\3">\2', _EMPTY_HEADER.sub(r"<td\1></td>", html))
    html = _TITLE.sub(lambda _: f"<title>{escape(name)}</title>", _DROPPED.sub("", html), count=1)
    # The theme's search is a dialog without a name.
    html = html.replace(_SEARCH, f'{_SEARCH} aria-label="Search"', 1)
    # Before the style sheets, so that the font is there when they are.
    font = f'<link rel="preload" as="font" type="font/woff2" crossorigin href="{escape(relative(FONT, here))}">'
    html = html.replace("<head>", f"<head>\n    {font}", 1)
    html = html.replace("</head>", f"{head}  </head>", 1)
    if facts.path == HOME:
        html = _next_is_the_first_chapter(html.replace("<body ", '<body class="hb-home" ', 1), project)
    else:
        html = _HEADING.sub(lambda m: _head(facts, twin) + m.group(), html, count=1)
    return html.replace("</article>", _closing(facts, project) + "</article>", 1)


def _next_is_the_first_chapter(html: str, project: Project) -> str:
    """On the home page the way on leads where the button above does, not to the first entry of the navigation."""
    first = project.first_chapter
    href, label = escape(relative(first.url, "")), escape(first.label)
    link = f'<a href="{href}" class="md-footer__link md-footer__link--next" aria-label="Next: {label}"'
    return _NEXT.sub(lambda m: link + _ELLIPSIS.sub(lambda e: e[1] + label + e[2], m["inside"]), html, count=1)


def _whole_words(code: str) -> str:
    """Inline code whose words do not break at a hyphen: ``--min-p`` is one word."""
    return re.sub(
        r"\S+",
        lambda m: f'<span class="hb-word">{m[0]}</span>' if "-" in m[0] and len(m[0]) <= WORD_LETTERS else m[0],
        code,
    )


def _relative_links(html: str, here: str, project: Project) -> str:
    """Links within the site as seen from ``here``: the site works at any path of any host."""
    start = f'<a(?P<before>[^>]*) href="{re.escape(escape(project.site_url))}(?P<target>[^"]*)"'
    return re.sub(start, lambda m: f'<a{m["before"]} href="{relative(m["target"], here)}"', html)


def _head(facts: Facts, twin: str) -> str:
    """Above the title: where the page stands in the book, and its Markdown."""
    place = f"<b>{escape(facts.number)}</b>{escape(facts.part)}" if facts.number else escape(facts.part)
    return (
        f'<div class="hb-head" data-search-exclude><span>{place}</span><span class="hb-actions">'
        f'<a href="{escape(twin)}">Markdown</a><button type="button" class="hb-copy">Copy</button></span></div>\n'
    )


def _closing(facts: Facts, project: Project) -> str:
    parts = []
    if facts.updated:
        parts.append(f'Updated <time datetime="{facts.updated}">{facts.updated}</time>')
    if facts.source_file:
        address = f"{project.repository}/blob/main/{facts.source_file}"
        parts.append(f'<a href="{escape(address)}">Source of this page</a>')
    return f'<p class="hb-closing">{" · ".join(parts)}</p>\n' if parts else ""


def not_found(html: str, project: Project) -> str:
    """The page for addresses that lead nowhere. Its links are absolute, since it is served at any depth."""
    home = "/" + project.site_url.split("://", 1)[-1].partition("/")[2]
    text = (
        "<h1>There is no such page</h1>\n"
        "<p>The address is misspelt, or the page has moved. The search above knows every page, and "
        f'<a href="{escape(home)}">the first page</a> has the map of the book.</p>'
    )
    html = _NOT_FOUND.sub(lambda _: text, html.replace(_SEARCH, f'{_SEARCH} aria-label="Search"', 1))
    return _TITLE.sub(lambda _: f"<title>Not found · {escape(project.name)}</title>", _DROPPED.sub("", html), count=1)


# The theme takes every alternate version of a page for a translation with a site map, shows the text of a result only
# where its address has no anchor, and calls each copy button a navigation without a name.
_SCRIPT_MENDED = (
    ('"link[rel=alternate]"', '"link[rel=alternate][hreflang]"'),
    ("oo(i,2|+(!n&&s===0))", "oo(i,2|+(n<1&&s===0))"),
    ('return x("nav",{class:"md-code__nav"})', 'return x("div",{class:"md-code__nav"})'),
)


def script(code: str) -> str:
    """The theme's script, mended."""
    return _mended(code, _SCRIPT_MENDED)


# What the theme's search lacks: results that stand alone on a page of many, and the query read in the book's words.
# Where it names a topic, the topic decides the order, and no word that the best page lacks is told to be missing.
_SEARCH_MENDED = (
    ("r.parent=i", "r.alone||(r.parent=i)"),
    ("constructor({config:e,docs:r,options:n}){", "constructor({config:e,docs:r,options:n}){this.book=[e,r];"),
    ("search(e){if(e=", "search(e){e=self.hbQuery(e,...this.book);if(e="),
    ("score:a*(1+K(g,2)),terms:f", "score:a*(e.includes('_q^')?1:1+K(g,2)),terms:e.includes('_q^')?{}:f"),
)


def search_worker(code: str, query: str) -> str:
    """The theme's search worker with ``query``, the script that reads a query, before it."""
    return f"{query}\n{_mended(code, _SEARCH_MENDED)}"


def _mended(code: str, pairs: Sequence[tuple[str, str]]) -> str:
    for theirs, ours in pairs:
        if code.count(theirs) != 1:
            raise SiteError(f"the theme's script has changed: {theirs!r} stands there {code.count(theirs)} times")
        code = code.replace(theirs, ours)
    return code
