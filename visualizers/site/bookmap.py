"""The map of what depends on what, drawn from the front matter of the pages."""

from __future__ import annotations

from dataclasses import dataclass

from visualizers.site.errors import Problem
from visualizers.site.project import Page, Project
from visualizers.site.text import address, content

# In px; `book.css` gives the rows these heights, so that the lines end at their pages.
_ROW = 44
_PART = 34
_LINES = 96  # width of the lines' own column: no line runs behind a word


@dataclass(frozen=True)
class _Row:
    page: Page
    y: float  # its middle


def cycles(project: Project) -> list[Problem]:
    """Dependencies that name no page, and the first ring of pages that need each other."""
    by_stem = project.by_stem
    problems = [
        Problem(page.file, 0, f"depends_on names {stem!r}, which is no page: pages are {', '.join(by_stem)}")
        for page in project.chapters
        for stem in page.meta.depends_on
        if stem not in by_stem
    ]
    state: dict[str, int] = {}  # 1 while its dependencies are followed, 2 when done

    def ring(stem: str, way: list[str]) -> list[str]:
        if state.get(stem) == 2:
            return []
        if state.get(stem) == 1:
            return [*way[way.index(stem) :], stem]
        state[stem] = 1
        for needed in by_stem[stem].meta.depends_on:
            if needed in by_stem and (found := ring(needed, [*way, stem])):
                return found
        state[stem] = 2
        return []

    for stem in by_stem:
        if found := ring(stem, []):
            file = by_stem[found[0]].file
            problems.append(Problem(file, 0, f"depends_on goes round in a ring: {' -> '.join(found)}"))
            break
    return problems


def _rows(project: Project) -> tuple[dict[str, _Row], float]:
    """The pages in the order in which they are read, below the headings of their parts; and the height of all."""
    rows: dict[str, _Row] = {}
    y = 0.0
    for _, pages in _parts(project):
        y += _PART
        for page in pages:
            rows[page.stem] = _Row(page, y + _ROW / 2)
            y += _ROW
    return rows, y


def _parts(project: Project) -> list[tuple[str, list[Page]]]:
    found = [(part.title, [project.by_path[p] for p in part.paths if p in project.by_path]) for part in project.parts]
    return [(title, pages) for title, pages in found if title and pages]


def _arc(start: float, end: float, furthest: float) -> str:
    """A line from one row to another, further out the further they are apart."""
    reach = 8 + (_LINES - 18) * abs(end - start) / furthest
    x = _LINES - 6
    return f"M{x} {start:.0f}C{x - reach * 4 / 3:.0f} {start:.0f} {x - reach * 4 / 3:.0f} {end:.0f} {x} {end:.0f}"


def drawing(project: Project) -> str:
    """The pages as a list in reading order, and beside it a line from each to every page that it needs.

    One HTML block without blank lines; the same on a phone and on a desk.
    """
    rows, height = _rows(project)
    needs = [(rows[stem], row) for row in rows.values() for stem in row.page.meta.depends_on if stem in rows]
    furthest = max((abs(a.y - b.y) for a, b in needs), default=1.0)
    lines = "".join(
        f'<path data-from="{above.page.stem}" data-to="{row.page.stem}" d="{_arc(above.y, row.y, furthest)}"/>'
        for above, row in needs
    )
    dots = "".join(f'<circle cx="{_LINES - 6}" cy="{row.y:.0f}" r="3"/>' for row in rows.values())
    parts = "\n".join(
        f'<p class="hb-map-part">{content(title)}</p>\n<ol>\n{_listed(project, pages)}\n</ol>'
        for title, pages in _parts(project)
    )
    return (
        '<div class="hb-map" data-search-exclude>\n'
        f'<svg class="hb-map-drawing" width="{_LINES}" height="{height:.0f}" viewBox="0 0 {_LINES} {height:.0f}" '
        f'aria-hidden="true"><g class="hb-map-lines">{lines}</g><g class="hb-map-dots">{dots}</g></svg>\n'
        f'<div class="hb-map-pages">\n{parts}\n</div>\n</div>'
    )


def _listed(project: Project, pages: list[Page]) -> str:
    return "\n".join(
        f'<li data-stem="{page.stem}"><a href="{address(project.site_url + page.url)}">'
        f'<span class="hb-number">{content(page.place)}</span> {content(page.meta.title)}</a></li>'
        for page in pages
    )


def contents(project: Project) -> str:
    """Every page with what it is about and what it needs, in words. One HTML block without blank lines."""
    parts = [
        f'<div class="hb-part"><p class="hb-part-title">{content(title)}</p>\n<ul>\n'
        + "\n".join(_entry(project, page) for page in pages)
        + "\n</ul></div>"
        for title, pages in _parts(project)
    ]
    return f'<div class="hb-contents" data-search-exclude>\n{chr(10).join(parts)}\n</div>'


def _entry(project: Project, page: Page) -> str:
    needs = ", ".join(
        f'<a href="{address(project.site_url + project.by_stem[stem].url)}">'
        f"{content(project.by_stem[stem].meta.title)}</a>"
        for stem in page.meta.depends_on
    )
    return (
        f'<li><span class="hb-number">{content(page.place)}</span> '
        f'<a class="hb-entry" href="{address(project.site_url + page.url)}">{content(page.meta.title)}</a>'
        f'<span class="hb-about">{content(page.meta.description)}</span>'
        + (f'<span class="hb-needs">needs {needs}</span>' if needs else "")
        + "</li>"
    )


def markdown(project: Project) -> str:
    """The map in words, for an agent: one line a page with what it needs; links absolute, to the twins."""
    lines = []
    for title, pages in _parts(project):
        lines.append(f"\n### {title}\n")
        for page in pages:
            needs = ", ".join(project.by_stem[stem].meta.title for stem in page.meta.depends_on)
            address = f"{project.site_url}{page.url.rstrip('/')}.md"
            lines.append(
                f"- [{page.label}]({address}): {page.meta.description}" + (f" Needs: {needs}." if needs else "")
            )
    return "\n".join(lines).strip("\n") + "\n"
