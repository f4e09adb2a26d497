"""Builds the site: pages through the generator, then one pass over its HTML, twins, figures and notebooks.

``build`` writes a whole site and swaps it in at the end. ``Builder`` keeps what is expensive (the figures' states,
the notebooks) between builds, so that an edit of a page's text is in the site within two seconds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from visualizers import palette
from visualizers.site import bookmap, discovery, generated, generators, hosting, llms, postprocess, searching, twins
from visualizers.site.errors import PageError, Problem
from visualizers.site.figures import Figures
from visualizers.site.files import files_below, is_built, locked, note_files, place, place_tree, swapped, write
from visualizers.site.generated import Generated
from visualizers.site.generators import Generator, Nav
from visualizers.site.payloads import Payloads
from visualizers.site.postprocess import Facts
from visualizers.site.project import HOME, Page, Project, load
from visualizers.site.render import START, Context, render
from visualizers.site.resolve import Marks, resolve
from visualizers.site.twins import NotebookUrl
from visualizers.site.values import Namespace

PALETTE = "assets/css/palette.css"
SEARCH_INDEX = "search/search_index.json"

TOLD_S = 0.5  # a figure that took longer is told of

Say = Callable[[str], None]


@dataclass(frozen=True)
class Content:
    """All texts of one site, before any generator has run."""

    project: Project
    generated: tuple[Generated, ...]
    documents: Mapping[str, str]  # path of a page -> what the generator reads
    twins: Mapping[str, str]  # path of a page -> its Markdown twin
    facts: Mapping[str, Facts]  # path of a page -> what its HTML says about itself

    @property
    def frame(self) -> object:
        """What every page shows of the others: while it is unchanged, pages can be rendered one by one."""
        return [(f.path, f.title, f.number, f.part) for f in self.facts.values()], repr(self.project.config)

    @property
    def nav(self) -> Nav:
        """The navigation with the label of each page."""
        nav: Nav = []
        for part in self.project.parts:
            entries = [{START if path == HOME else self.facts[path].label: path} for path in part.paths]
            nav += [{part.title: entries}] if part.title else entries
        return nav


def compose(project: Project, figures: Figures, namespace: Namespace, notebooks: NotebookUrl) -> Content:
    """Every page as the generator and as an agent read it. Raises :class:`PageError` with all findings."""
    problems: list[Problem] = bookmap.cycles(project)
    marks: dict[str, Marks] = {}
    for page in project.pages:
        marks[page.path], found = resolve(page, namespace, project.bibliography)
        problems += found
    if problems:
        raise PageError(problems)
    context = Context(project, figures)
    documents: dict[str, str] = {}
    texts: dict[str, str] = {}
    for page in project.pages:
        try:
            documents[page.path] = render(page, marks[page.path], context)
            texts[page.path] = twins.twin(page, marks[page.path], project, figures, notebooks)
        except PageError as error:
            problems += error.problems
    if problems:
        raise PageError(problems)
    extra = generated.pages(project)
    documents |= {page.path: page.document for page in extra}
    texts |= {page.path: page.twin for page in extra}
    return Content(project, extra, documents, texts, _facts(project, extra))


def _facts(project: Project, extra: tuple[Generated, ...]) -> dict[str, Facts]:
    def of(page: Page) -> Facts:
        meta = page.meta
        return Facts(
            page.path,
            page.url,
            meta.title,
            meta.description,
            page.place,
            page.part,
            str(meta.updated),
            source_file=page.file,
        )

    facts = {page.path: of(page) for page in project.pages}
    newest = str(max((page.meta.updated for page in project.pages), default=""))
    return facts | {
        page.path: Facts(page.path, page.url, page.title, page.description, changed=newest) for page in extra
    }


@dataclass
class Builder:
    """Builds one project again and again. ``figures`` and ``namespace`` may be made anew for every full build."""

    root: Path
    figures: Figures
    namespace: Namespace
    site_url: str | None = None
    generator: Generator = field(default_factory=lambda: generators.get("mkdocs"))
    vega: Callable[[], str] | None = None  # the script that draws figures
    say: Say = print
    payload_folder: Path | None = None  # where the figures' JSON is kept between processes
    live: bool = False  # whether the site is served where notebooks run on kernels of this machine
    _last: Content | None = None
    _notebooks: Path | None = None

    def __post_init__(self) -> None:
        self._payloads = Payloads(self.figures, self.payload_folder)

    @classmethod
    def of(
        cls, root: Path, *, site_url: str | None = None, generator: Generator | None = None, live: bool = False
    ) -> Builder:
        """A builder of the project at ``root`` with its own figures, catalogue and cost functions."""
        from visualizers.levels.computed import ComputedFigures
        from visualizers.site.namespace import names

        project = load(root, strict=False)
        figures = ComputedFigures(project.repository)
        return cls(
            root,
            figures,
            names(figures),
            site_url,
            generator or generators.get("mkdocs"),
            lambda: vega_script(root / ".cache"),
            payload_folder=root / ".cache" / "payloads",
            live=live,
        )

    def build(self, out: Path, notebooks: Path | None = None) -> Content:
        """The whole site at ``out``, swapped in when complete; ``notebooks``, a folder, goes to ``notebooks/``."""
        content = self._compose(notebooks)  # first: what is wrong with a text shows within seconds
        self._compute_figures()
        with swapped(out) as staging:
            with self._lock():
                self._generate(content, partial=False)
                self.say(f"pages: {len(content.documents)} rendered by {self.generator.name}")
                self._finish(content, staging, self._raw_files())
            self._write_texts(content, staging)
            self._write_figures(staging)
            if notebooks is not None:
                place_tree(notebooks, staging / "notebooks")
        self._last, self._notebooks = content, notebooks
        return content

    def update(self, out: Path) -> tuple[str, ...]:
        """Brings an edit into ``out``, file by file, and returns the addresses of the pages that changed.

        Falls back to a whole build where pages came, went or were renamed, or what was built is gone.
        """
        last = self._last
        content = self._compose(self._notebooks)
        if last is None or not is_built(out) or content.frame != last.frame or self.generator.name != "mkdocs":
            self.build(out, self._notebooks)
            return tuple(facts.url for facts in content.facts.values())
        changed = [path for path, document in content.documents.items() if document != last.documents[path]]
        changed += [p for p, f in content.facts.items() if f != last.facts[p] and p not in changed]
        if changed:
            with self._lock():
                self._generate(content, partial=True)
                self._finish(content, out, [_html_of(path, content) for path in changed])
        self._write_assets(content, out)
        self._write_texts(content, out)
        note_files(out, [f"assets/{file}" for file in files_below(content.project.handbook / "assets")])
        self._last = content
        return tuple(content.facts[path].url for path in changed)

    def _compute_figures(self) -> None:
        """All states of all figures, which is most of a first build's time and kept for the next."""
        names = self.figures.names()
        for position, name in enumerate(names, start=1):
            started = time.monotonic()
            self._payloads.text(name)
            taken = time.monotonic() - started
            if taken >= TOLD_S:
                self.say(f"figures: {position} of {len(names)}, {name}, {taken:.0f} s")

    def _compose(self, notebooks: Path | None) -> Content:
        def address(stem: str) -> str | None:
            if self.live:
                return f"live/{stem}/"
            file = f"{stem}.html"
            return f"notebooks/{file}" if notebooks and (notebooks / file).is_file() else None

        return compose(load(self.root, site_url=self.site_url), self.figures, self.namespace, address)

    def _lock(self) -> AbstractContextManager[None]:
        """The folders between sources and site are one for all builds of a project, a running server's included."""
        return locked(self.root / ".build" / "lock", self.say)

    @property
    def _docs(self) -> Path:
        return self.root / ".build" / "docs"

    @property
    def _raw(self) -> Path:
        return self.root / ".build" / "site"

    def _raw_files(self) -> list[str]:
        # A site map's compressed copy carries its date, so that no two builds would be equal.
        # The search reads the index that is made from the sources.
        return [file for file in files_below(self._raw) if file not in ("sitemap.xml.gz", SEARCH_INDEX)]

    def _generate(self, content: Content, *, partial: bool) -> None:
        wanted = {*content.documents, PALETTE}
        for path, text in content.documents.items():
            write(self._docs / path, text)
        write(self._docs / PALETTE, palette.css())
        assets = content.project.handbook / "assets"
        for file in files_below(assets):
            write(self._docs / "assets" / file, (assets / file).read_bytes())
            wanted.add(f"assets/{file}")
        for file in files_below(self._docs):
            if file not in wanted:
                (self._docs / file).unlink()
        if not partial and self._raw.exists():
            shutil.rmtree(self._raw)
        url = content.project.site_url
        self.generator.run(self.root, self._docs, self._raw, url, content.nav, partial=partial)

    def _finish(self, content: Content, out: Path, files: list[str]) -> None:
        """The generator's files into ``out``, its HTML completed."""
        pages = {_html_of(path, content): facts for path, facts in content.facts.items()}
        for file in files:
            raw = self._raw / file
            if file in pages:
                html = raw.read_text(encoding="utf-8")
                write(out / file, postprocess.page(html, pages[file], content.project))
            elif file == "404.html":
                html = raw.read_text(encoding="utf-8")
                write(out / file, postprocess.not_found(html, content.project))
            elif file == "sitemap.xml":
                text = raw.read_text(encoding="utf-8")
                write(out / file, discovery.sitemap(text, content.project, content.facts.values()))
            elif self._mended(file, "bundle"):
                write(out / file, postprocess.script(raw.read_text(encoding="utf-8")))
            elif self._mended(file, "workers/search"):
                query = (content.project.handbook / "assets" / "js" / "search.js").read_text(encoding="utf-8")
                write(out / file, postprocess.search_worker(raw.read_text(encoding="utf-8"), query))
            elif (out / file).exists():
                write(out / file, raw.read_bytes())
            else:
                place(raw, out / file)

    def _mended(self, file: str, script: str) -> bool:
        """Whether ``file`` is that script of the theme that we know; another generator has its own."""
        known = file.startswith(f"assets/javascripts/{script}.") and file.endswith(".js")
        return known and self.generator.name == "mkdocs"

    def _write_texts(self, content: Content, out: Path) -> None:
        for path, text in content.twins.items():
            for address in twins.addresses(content.facts[path].url):
                write(out / address, text)
        index = searching.Index(content.project, self.figures).record
        write(out / SEARCH_INDEX, json.dumps(index, ensure_ascii=False, separators=(",", ":")))
        write(out / "robots.txt", discovery.robots(content.project))
        write(out / "404.md", discovery.not_found(content.project))
        write(out / discovery.FEED, discovery.feed(content.project))
        write(out / "_headers", discovery.headers())
        write(out / hosting.HTACCESS, hosting.htaccess(content.project.site_url))
        write(out / "llms.txt", llms.index(content.project, content.generated, content.twins))
        for file, text in llms.bundles(content.project, content.twins).items():
            write(out / file, text)

    def _write_figures(self, out: Path) -> None:
        for name in self.figures.names():
            write(out / "figures" / f"{name}.json", self._payloads.text(name))
            write(out / "figures" / f"{name}.grid.json", json.dumps(self.figures.grid(name), ensure_ascii=False))
        if self.vega is not None:
            write(out / "assets" / "js" / "vega.js", self.vega())

    def _write_assets(self, content: Content, out: Path) -> None:
        assets = content.project.handbook / "assets"
        for file in files_below(assets):
            write(out / "assets" / file, (assets / file).read_bytes())


def vega_script(cache: Path) -> str:
    """The script that draws figures, made once for each version of vl-convert."""
    from importlib.metadata import version

    from visualizers.levels.instant import vega_bundle

    file = cache / f"vega-{version('vl-convert-python')}.js"
    if not file.is_file():
        write(file, vega_bundle())
    return file.read_text(encoding="utf-8")


def _html_of(path: str, content: Content) -> str:
    return f"{content.facts[path].url}index.html"
