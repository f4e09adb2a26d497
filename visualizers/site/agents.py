"""What a program may ask of the book: figures at its own inputs, pages as Markdown, the search; and its MCP server.

``handbook mcp`` serves it on standard input and output, ``handbook serve`` at ``/mcp`` and ``/figures/NAME.json?...``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from visualizers import registry
from visualizers.contract import InputError
from visualizers.levels import schema
from visualizers.site import generated, twins
from visualizers.site.figures import Figures
from visualizers.site.project import Project, load
from visualizers.site.resolve import resolve
from visualizers.site.searching import Index
from visualizers.site.values import Namespace

INSTRUCTIONS = """\
The inference handbook: how language models are served, with figures that a real engine computes.
Search or list the pages, read one as Markdown; list the figures with the JSON schema of their inputs, and compute one
at any inputs that its schema takes. A figure's record says where its numbers come from and when they were recorded."""


class AskedError(ValueError):
    """What was asked for does not exist or is not taken; the message says what is."""


class Book:
    """The handbook for programs. Pages are read anew at each question, so that an edit is seen."""

    def __init__(self, root: Path, figures: Figures, namespace: Namespace, site_url: str | None = None) -> None:
        self._root, self._figures, self._namespace, self._site_url = root, figures, namespace, site_url
        self._computing = threading.Lock()  # the engine is for one at a time
        self._index: Index | None = None

    def names(self) -> tuple[str, ...]:
        """The figures there are."""
        return self._figures.names()

    def figures(self) -> list[dict[str, Any]]:
        """All figures with their inputs, and the schema of both ends."""
        return [schema.entry(v) for v in registry.all()]

    def figure(self, name: str, inputs: Mapping[str, object]) -> dict[str, Any]:
        """A figure at its defaults overlaid with ``inputs``: what ``python -m visualizers NAME --json`` prints."""
        try:
            with self._computing:
                return dict(self._figures.record(name, inputs))
        except (InputError, LookupError) as error:
            raise AskedError(str(error).removeprefix("--")) from error

    def pages(self) -> list[dict[str, Any]]:
        """All pages in the order in which they are read, with the address of their Markdown."""
        project = self._project()
        extra = {page.path: page for page in generated.pages(project)}
        found: list[dict[str, Any]] = []
        for path in (path for part in project.parts for path in part.paths):
            if page := project.by_path.get(path):
                title, about, url, updated = page.label, page.meta.description, page.url, str(page.meta.updated)
            else:
                title, about, url, updated = extra[path].title, extra[path].description, extra[path].url, ""
            entry = {"page": url.rstrip("/") or "index", "title": title, "description": about}
            found.append({**entry, "markdown": twins.twin_url(url, project), "updated": updated})
        return found

    def page(self, name: str) -> str:
        """A page as Markdown, by its address, its path or the last part of it."""
        project = self._project()
        path = name.removeprefix(project.site_url).partition("#")[0].partition("?")[0].strip("/")
        for ending in ("index.html.md", "index.md", ".md"):
            path = path.removesuffix(ending).strip("/")
        wanted = path or "index"
        for written in generated.pages(project):
            if wanted in (written.path.removesuffix(".md"), Path(written.path).stem):
                return written.twin
        for page in project.pages:
            if wanted in (page.path.removesuffix(".md"), page.stem):
                marks, problems = resolve(page, self._namespace, project.bibliography)
                if problems:
                    raise AskedError("\n".join(map(str, problems)))
                with self._computing:
                    return twins.twin(page, marks, project, self._figures, lambda _: None)
        known = ", ".join(entry["page"] for entry in self.pages())
        raise AskedError(f"there is no page {name!r}: choose from {known}")

    def search(self, query: str, limit: int = 10) -> list[dict[str, str]]:
        """The pages, sections, figures, terms and sources that match best."""
        project = self._project()
        if self._index is None or self._index.project != project:
            with self._computing:
                self._index = Index(project, self._figures)
        found = self._index.search(query, max(1, min(limit, 50)))
        return [
            {
                "title": document.title,
                "page": document.location.partition("#")[0].rstrip("/") or "index",
                "address": project.site_url + document.location,
                "text": document.text[:400],
            }
            for document in found
        ]

    def _project(self) -> Project:
        return load(self._root, site_url=self._site_url, strict=False)


def server(book: Book) -> MCPServer[Any]:
    """The MCP server: five tools, which read and compute and change nothing."""
    made: MCPServer[Any] = MCPServer("inference-handbook", instructions=INSTRUCTIONS, log_level="ERROR")

    @made.tool()
    def list_figures() -> list[dict[str, Any]]:
        """All figures of the book: what each shows, its inputs, its values with units, JSON schemas of both."""
        return book.figures()

    @made.tool()
    def compute_figure(name: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Computes a figure at the given inputs, the others at their defaults: values, table, sentence, provenance."""
        return dict(_told(lambda: book.figure(name, inputs or {})))

    @made.tool()
    def list_pages() -> list[dict[str, Any]]:
        """All pages of the book in reading order, one line each."""
        return book.pages()

    @made.tool(structured_output=False)
    def read_page(page: str) -> str:
        """A page as Markdown, with the formulas of its numbers, its figures as tables, its sources."""
        return str(_told(lambda: book.page(page)))

    @made.tool()
    def search(query: str, limit: int = 10) -> list[dict[str, str]]:
        """Finds pages, sections, figures, glossary terms and sources; forgives typing errors, knows other names."""
        return book.search(query, limit)

    return made


def mount(book: Book, path: str) -> Starlette:
    """The MCP server as an application at ``path``. Whoever mounts it guards its host and origin."""
    trusting = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server(book).streamable_http_app(
        streamable_http_path=path, json_response=True, stateless_http=True, transport_security=trusting
    )


def _told(ask: Any) -> Any:
    try:
        return ask()
    except AskedError as error:
        raise ToolError(str(error)) from error


def as_json(value: object) -> str:
    """One JSON text, for an answer over HTTP."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
