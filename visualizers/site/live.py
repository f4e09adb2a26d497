"""The notebooks on kernels of this machine: marimo's application, one mount a notebook, code on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marimo
from marimo._server.utils import initialize_asyncio
from starlette.responses import RedirectResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from visualizers.site.wasm import notebooks

# Seconds that a kernel outlives its frame: a reload finds it gone, a hiccup of the connection does not.
SESSION_TTL_S = 5


class Live:
    """Answers below ``prefix`` (``/live/``): ``STEM/`` is a notebook, ``_static/`` marimo's own files."""

    def __init__(self, root: Path, prefix: str) -> None:
        initialize_asyncio()
        self.stems = tuple(path.stem for path in notebooks(root))
        self._without_slash = frozenset(f"{prefix}{stem}" for stem in self.stems)
        self._static_prefix = f"{prefix}_static"
        self._static = StaticFiles(directory=Path(marimo.__file__).parent / "_static")
        builder = marimo.create_asgi_app(
            quiet=True,
            include_code=True,
            show_tracebacks=True,
            session_ttl=SESSION_TTL_S,
            # One address for all notebooks, so that a browser keeps one copy.
            asset_url=self._static_prefix,
        )
        for path in notebooks(root):
            builder = builder.with_app(path=f"{prefix}{path.stem}", root=str(path))
        self._app: Any = builder.build()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(f"{self._static_prefix}/"):
            below = {**scope, "path": path.removeprefix(self._static_prefix), "root_path": ""}
            await self._static(below, receive, send)
        elif scope["type"] == "http" and path in self._without_slash:
            # marimo's own redirect forgets that it stands below a path.
            await RedirectResponse(f"{path}/", 301)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def sessions(self) -> int:
        """How many kernels there are now."""
        return sum(len(manager.sessions) for manager in self._managers())

    async def shutdown(self) -> None:
        """Ends all kernels."""
        for manager in self._managers():
            await manager.shutdown()

    def _managers(self) -> Iterator[Any]:
        for route in self._app.routes:
            if isinstance(route, Mount):
                yield route.app.state.session_manager  # type: ignore[attr-defined]
