"""The notebooks on kernels of this machine: marimo's application, one mount a notebook, code on demand."""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marimo
from marimo._server.utils import initialize_asyncio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from visualizers.site import front_end
from visualizers.site.editor import Editor
from visualizers.site.static import TYPES
from visualizers.site.wasm import notebooks

# Seconds that a kernel outlives its frame: a reload finds it gone, a hiccup of the connection does not.
SESSION_TTL_S = 5
OURS = ("minillm", "visualizers")
CHARTS = "visualizers.levels.charts"  # what notebooks import only when they draw, and then wait for


class Live:
    """Answers below ``prefix`` (``/live/``): ``STEM/`` is a notebook, ``_static/`` marimo's own files.

    With ``edit`` a notebook can also be opened in marimo's editor, at an address that ``_edit`` tells.
    """

    def __init__(self, root: Path, prefix: str, *, edit: bool = True) -> None:
        initialize_asyncio()
        self._notebooks = notebooks(root)
        self.stems = tuple(path.stem for path in self._notebooks)
        self._without_slash = frozenset(f"{prefix}{stem}" for stem in self.stems)
        self._static_prefix = f"{prefix}_static"
        self._static = MarimoFiles()
        self.front = self._static.front
        builder = marimo.create_asgi_app(
            quiet=True,
            include_code=True,
            show_tracebacks=True,
            session_ttl=SESSION_TTL_S,
            # One address for all notebooks, so that a browser keeps one copy.
            asset_url=self._static_prefix,
            html_head=front_end.head(),
        )
        for path in self._notebooks:
            builder = builder.with_app(path=f"{prefix}{path.stem}", root=str(path))
        self._app: Any = builder.build()
        self._ask = f"{prefix}_edit"
        self._edit_prefix = f"{self._ask}/"
        self._editor = Editor(self._notebooks, self._edit_prefix, self._static_prefix, SESSION_TTL_S) if edit else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(f"{self._static_prefix}/"):
            await self._static.answer(path.removeprefix(f"{self._static_prefix}/"))(scope, receive, send)
        elif self._editor and path.startswith(self._edit_prefix):
            await self._editor(scope, receive, send)
        elif self._editor and path == self._ask and scope["type"] == "http" and scope["method"] == "POST":
            answer = await self._editor.ask(Request(scope, receive))
            await answer(scope, receive, send)
        elif scope["type"] == "http" and path in self._without_slash:
            # marimo's own redirect forgets that it stands below a path.
            await RedirectResponse(f"{path}/", 301)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def warm(self) -> None:
        """Imports what the notebooks will: their kernels are threads of this process, and find it done.

        A notebook that cannot be read or imported says so itself, when it is opened.
        """
        for name in sorted({CHARTS, *(name for path in self._notebooks for name in _imports(path))}):
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def sessions(self) -> int:
        """How many kernels there are now."""
        edited = self._editor.sessions() if self._editor else 0
        return edited + sum(len(manager.sessions) for manager in self._managers())

    async def shutdown(self) -> None:
        """Ends all kernels."""
        for manager in self._managers():
            await manager.shutdown()
        if self._editor:
            await self._editor.shutdown()

    def _managers(self) -> Iterator[Any]:
        for route in self._app.routes:
            if isinstance(route, Mount):
                yield route.app.state.session_manager  # type: ignore[attr-defined]


class MarimoFiles:
    """marimo's own static files. Nothing that was not there at the start is served, whatever the path says."""

    def __init__(self) -> None:
        folder = front_end.FOLDER
        self.front = front_end.files()
        self._files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

    def answer(self, name: str) -> Response:
        """The file; a browser need not ask again for one whose name carries a digest of its content."""
        file = self._files.get(name)
        if file is None:
            return Response("Not found\n", 404, media_type="text/plain")
        caching = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        kind = TYPES.get(file.suffix, "application/octet-stream")
        return Response(file.read_bytes(), headers={"Cache-Control": caching, "Content-Type": kind})


def _imports(notebook: Path) -> Iterator[str]:
    """The modules of this project that a notebook names."""
    try:
        tree = ast.parse(notebook.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        yield from (name for name in names if name.split(".")[0] in OURS)
