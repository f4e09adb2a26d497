"""The map of what depends on what, drawn from the front matter of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from visualizers.site.errors import Problem
from visualizers.site.project import Page, Project
from visualizers.site.text import address, content

_BOX_HEIGHT = 34
_ROW_STEP = 86
_GAP = 26
_CHARACTER = 7.6  # px of an average character at the size of the map's type
_PADDING = 24


@dataclass(frozen=True)
class _Box:
    page: Page
    x: float  # centre
    y: float  # top
    width: float


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


def depths(project: Project) -> Mapping[str, int]:
    """For each stem how many pages lie on the longest way down. The dependencies must have no ring."""
    known: dict[str, int] = {}

    def depth(stem: str) -> int:
        if stem not in known:
            needed = project.by_stem[stem].meta.depends_on
            known[stem] = 1 + max((depth(s) for s in needed), default=-1)
        return known[stem]

    for stem in project.by_stem:
        depth(stem)
    return known


def _layout(project: Project) -> tuple[dict[str, _Box], float, float]:
    """Boxes in rows by depth; within a row each stands near the middle of what it needs."""
    level = depths(project)
    rows: list[list[Page]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for page in project.chapters:
        rows[level[page.stem]].append(page)
    boxes: dict[str, _Box] = {}

    def wanted(page: Page) -> float:
        above = [boxes[stem].x for stem in page.meta.depends_on if stem in boxes]
        return sum(above) / len(above) if above else 0.0

    widths = {page.stem: len(page.label) * _CHARACTER + _PADDING for page in project.chapters}
    widest = max((sum(widths[p.stem] + _GAP for p in row) - _GAP for row in rows), default=0)
    for number, row in enumerate(rows):
        ordered = sorted(row, key=wanted) if number else row
        x = (widest - (sum(widths[p.stem] + _GAP for p in ordered) - _GAP)) / 2
        for page in ordered:
            width = widths[page.stem]
            boxes[page.stem] = _Box(page, x + width / 2, number * _ROW_STEP + 1, width)
            x += width + _GAP
    return boxes, widest, max(len(rows) - 1, 0) * _ROW_STEP + _BOX_HEIGHT + 2


def svg(project: Project) -> str:
    """The map as a picture whose boxes are links; the list below it says the same in words."""
    boxes, width, height = _layout(project)
    lines = []
    for box in boxes.values():
        for stem in box.page.meta.depends_on:
            above = boxes[stem]
            start, end = above.y + _BOX_HEIGHT, box.y
            bend = min(36.0, (end - start) / 2)
            lines.append(
                f'<path d="M{above.x:.0f} {start:.0f} C{above.x:.0f} {start + bend:.0f} '
                f'{box.x:.0f} {end - bend:.0f} {box.x:.0f} {end:.0f}"/>'
            )
    # Links are HTML in the drawing: the theme's navigation trips over links of SVG's own kind.
    shapes = [
        f'<foreignObject x="{box.x - box.width / 2:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{_BOX_HEIGHT}"><a class="hb-map-box" href="{address(project.site_url + box.page.url)}">'
        f"{content(box.page.label)}</a></foreignObject>"
        for box in boxes.values()
    ]
    return (
        f'<svg class="hb-map-drawing" viewBox="-1 0 {width + 2:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px" role="group" aria-label="Map: lines lead down to what needs a page">\n'
        f'<g class="hb-map-lines">{"".join(lines)}</g>\n{"".join(shapes)}\n</svg>'
    )


def html(project: Project) -> str:
    """The map, and the contents of the book with what each page needs. One HTML block without blank lines."""
    parts = []
    for part in project.parts:
        pages = [project.by_path[path] for path in part.paths if path in project.by_path]
        if part.title and pages:
            entries = "\n".join(_entry(project, page) for page in pages)
            parts.append(
                f'<div class="hb-part"><p class="hb-part-title">{content(part.title)}</p>\n<ul>\n{entries}\n</ul></div>'
            )
    return (
        f'<div class="hb-map" data-search-exclude>\n{svg(project)}\n'
        f'<div class="hb-contents">\n{chr(10).join(parts)}\n</div>\n</div>'
    )


def _entry(project: Project, page: Page) -> str:
    needs = ", ".join(
        f'<a href="{address(project.site_url + project.by_stem[stem].url)}">'
        f"{content(project.by_stem[stem].meta.title)}</a>"
        for stem in page.meta.depends_on
    )
    return (
        f'<li><span class="hb-number">{content(page.number)}</span> '
        f'<a class="hb-entry" href="{address(project.site_url + page.url)}">{content(page.meta.title)}</a>'
        f'<span class="hb-about">{content(page.meta.description)}</span>'
        + (f'<span class="hb-needs">needs {needs}</span>' if needs else "")
        + "</li>"
    )


def markdown(project: Project) -> str:
    """The map in words, for an agent: one line a page with what it needs; links absolute, to the twins."""
    lines = []
    for part in project.parts:
        pages = [project.by_path[path] for path in part.paths if path in project.by_path]
        if not part.title or not pages:
            continue
        lines.append(f"\n### {part.title}\n")
        for page in pages:
            needs = ", ".join(project.by_stem[stem].meta.title for stem in page.meta.depends_on)
            address = f"{project.site_url}{page.url.rstrip('/')}.md"
            lines.append(
                f"- [{page.label}]({address}): {page.meta.description}" + (f" Needs: {needs}." if needs else "")
            )
    return "\n".join(lines).strip("\n") + "\n"
