"""The pages that no one writes: glossary, sources and map, each for the generator and as a Markdown twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from visualizers.site import bookmap, twins
from visualizers.site.project import Page, Project
from visualizers.site.reference import Term
from visualizers.site.render import front_matter, source_html
from visualizers.site.text import address, content


@dataclass(frozen=True)
class Generated:
    """``document`` is what the generator reads, ``twin`` what an agent reads."""

    path: str
    url: str
    title: str
    description: str
    document: str
    twin: str


def pages(project: Project) -> tuple[Generated, ...]:
    """All generated pages, in the order of the navigation."""
    log = project.root / "CHANGELOG.md"
    changes = (_changelog(project, log.read_text(encoding="utf-8")),) if log.is_file() else ()
    return (_map(project), _glossary(project), _sources(project), *changes)


def _page(project: Project, name: str, title: str, description: str, body: str, twin: str) -> Generated:
    url = f"reference/{name}/"
    updated = max((page.meta.updated for page in project.pages), default=None)
    fields: dict[str, object] = {
        "title": title,
        "description": description,
        "canonical": project.site_url + url,
        "updated": updated.isoformat() if updated else None,
        "all_pages": f"{project.site_url}llms.txt",
        "licence": twins.LICENCE,
    }
    return Generated(
        f"reference/{name}.md",
        url,
        title,
        description,
        f"{front_matter(title, description)}# {title}\n\n{body}\n",
        f"{twins.front_matter(fields)}# {title}\n\n{twin.strip()}\n",
    )


def _map(project: Project) -> Generated:
    lead = (
        "The pages in the order in which they are read. A line leads from a page to one that it needs. Start anywhere; "
        "follow a line up for what is missing.\n\n"
    )
    return _page(
        project,
        "map",
        "Map",
        "What depends on what: every page of the handbook with the pages it needs.",
        f"{lead}{bookmap.drawing(project)}\n\n## What each page needs\n\n{bookmap.contents(project)}",
        bookmap.markdown(project).replace("\n### ", "\n## ").replace("### ", "## ", 1),
    )


def _changelog(project: Project, text: str) -> Generated:
    body = text.partition("\n")[2].strip()
    feed = f"{project.site_url}feed.xml"
    return _page(
        project,
        "changelog",
        "Changelog",
        "What changed in the handbook and its engine, version by version.",
        f'{body}\n\nPages that changed, as a feed: <a href="{address(feed)}">feed.xml</a>.',
        f"{body}\n\nPages that changed, as a feed: <{feed}>.",
    )


def _glossary(project: Project) -> Generated:
    ordered = sorted(project.glossary, key=lambda term: term.term.lower())
    entries, lines = [], []
    for term in ordered:
        page = project.by_stem.get(term.page)
        link = f'<a href="{address(project.site_url + page.url)}">{content(page.label)}</a>' if page else ""
        entries.append(
            f'<dt id="{term.anchor}">{content(term.term)}{_also_html(term)}</dt>\n'
            f"<dd>{content(term.definition)} {link}</dd>"
        )
        more = f" See [{page.label}]({twins.twin_url(page.url, project)})." if page else ""
        also = f" (also: {', '.join(term.aliases)})" if term.aliases else ""
        lines.append(f"- **{term.term}**{also}: {term.definition}{more}")
    return _page(
        project,
        "glossary",
        "Glossary",
        "The terms of the handbook, each with its definition and the page that explains it.",
        '<dl class="hb-glossary">\n' + "\n".join(entries) + "\n</dl>",
        "\n".join(lines),
    )


def _also_html(term: Term) -> str:
    """Other forms, without plurals, which tell a reader nothing."""
    told = [form for form in term.aliases if form.rstrip("s") != term.term]
    return f' <span class="hb-also">{content(", ".join(told))}</span>' if told else ""


def _sources(project: Project) -> Generated:
    users: Mapping[str, list[Page]] = {
        key: [page for page in project.pages if key in page.meta.sources] for key in project.bibliography
    }
    ordered = sorted(project.bibliography.values(), key=lambda s: (s.authors.lower(), s.year, s.title))
    entries, lines = [], []
    for source in ordered:
        pages = users[source.key]
        links = ", ".join(
            f'<a href="{address(project.site_url + page.url)}">{content(page.label)}</a>' for page in pages
        )
        entries.append(f'<li id="{source.key}">{source_html(source)} <span class="hb-users">In {links}.</span></li>')
        lines.append(f"- {twins.source_markdown(source)} In {', '.join(page.label for page in pages)}.")
    return _page(
        project,
        "sources",
        "Sources",
        "Everything that the handbook cites, with the day on which the cited values were checked.",
        '<ul class="hb-bibliography">\n' + "\n".join(entries) + "\n</ul>",
        "\n".join(lines),
    )
