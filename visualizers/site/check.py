"""Everything that ``handbook check`` finds, as lines of ``file:line: message``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from visualizers.site import bookmap, commands, generated, limits, llms, pagechecks
from visualizers.site.errors import Problem, SiteError
from visualizers.site.figures import Figures
from visualizers.site.files import write
from visualizers.site.project import Project, load
from visualizers.site.resolve import resolve
from visualizers.site.values import Namespace

LLMS = "llms.txt"


def check(root: Path, figures: Figures, namespace: Namespace, *, fix: bool = False) -> list[Problem]:
    """All findings of the project, sorted. With ``fix`` a stale ``llms.txt`` is written anew first."""
    project = load(root, strict=False)
    problems = list(project.problems)
    problems += bookmap.cycles(project)
    problems += _ids(project)
    problems += _reference(project)
    names = {name: name.replace("-", "_") for name in figures.names()}
    problems += _stems(project, names)
    for page in project.pages:
        _, found = resolve(page, namespace, project.bibliography)
        problems += found
        problems += pagechecks.check(page, project, figures)
        problems += commands.check(page, root, figures)
        problems += limits.check(page)
    if not problems:  # the index of broken pages would say what is wrong with them, not with itself
        problems += _index(project, fix=fix)
    return sorted(set(problems))


def _ids(project: Project) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    stems: dict[str, str] = {}
    for page in project.chapters:
        for number in page.meta.ids:
            if number in seen:
                yield Problem(page.file, 0, f"covers id {number}, which {seen[number]} covers already")
            seen[number] = page.file
        if page.stem in stems:
            yield Problem(page.file, 0, f"has the stem {page.stem!r} of {stems[page.stem]}: stems must differ")
        stems[page.stem] = page.file


def _reference(project: Project) -> Iterator[Problem]:
    used = {key for page in project.pages for key in page.meta.sources}
    cited = {
        (key.strip(), token.text)
        for page in project.pages
        for token in page.tokens
        if token.kind == "cited"
        for key in token.argument.split(",")
    }
    for source in project.bibliography.values():
        for value in source.values:
            if (source.key, value) not in cited:
                yield Problem(
                    "handbook/bibliography.yml", source.line, f"{source.key}: no page cites {value!r} of its `values`"
                )
        if source.key not in used:
            yield Problem("handbook/bibliography.yml", source.line, f"{source.key}: no page names it in `sources`")
    for term in project.glossary:
        if term.page not in project.by_stem:
            yield Problem("handbook/glossary.yml", term.line, f"{term.term}: there is no page {term.page!r}")


def _stems(project: Project, names: dict[str, str]) -> Iterator[Problem]:
    """A visualizer has a notebook of the same stem with the right header, and a page that shows it."""
    shown = pagechecks.embedded(project.pages)
    version = _version(project.root)
    for name, stem in names.items():
        if name not in shown and stem not in shown:
            yield Problem(f"visualizers/figures/{stem}.py", 0, "no page shows it: add a ```figure block")
        notebook = project.root / "notebooks" / f"{stem}.py"
        shown_path = f"notebooks/{stem}.py"
        if not notebook.is_file():
            yield Problem(shown_path, 0, f"is missing: the visualizer {name} needs a notebook of its stem")
        elif (text := _text(notebook)) is None:
            yield Problem(shown_path, 0, "is not UTF-8: save it as UTF-8")
        elif message := _header_problem(text, version):
            yield Problem(shown_path, 1, message)


def _version(root: Path) -> str:
    match = re.search(r'^version = "([^"]+)"', _text(root / "pyproject.toml") or "", re.MULTILINE)
    if match is None:
        raise SiteError(f"{root / 'pyproject.toml'} names no version: notebooks have to name it")
    return match.group(1)


def _text(file: Path) -> str | None:
    """What ``file`` says; None where there is none, or no text in it."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _header_problem(text: str, version: str) -> str:
    """What is wrong with a notebook's script metadata. Other people's packages have our import names."""
    block = re.match(r"(?:#!.*\n)?# /// script\n((?:#.*\n)*?)# ///\n", text)
    if not block:
        return "does not start with script metadata: `# /// script` ... `# ///`"
    wanted = f'"inference-handbook=={version}"'
    if wanted not in block.group(1):
        return f"its script metadata does not name {wanted}"
    if stranger := re.search(r'"(minillm|visualizers)[^"]*"', block.group(1)):
        return f"its script metadata names {stranger.group()}, a stranger's package: name inference-handbook only"
    return ""


def _index(project: Project, *, fix: bool) -> Iterator[Problem]:
    text = llms.index(project, generated.pages(project))
    file = project.root / LLMS
    if fix:
        write(file, text)
    elif _text(file) != text:
        yield Problem(LLMS, 0, "is stale: run `handbook check --fix`")
