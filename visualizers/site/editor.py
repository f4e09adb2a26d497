"""marimo's editor on copies of the notebooks: it runs whatever is typed, so its address carries a secret.

The secret is new at each start of the server. Only a page of ours gets it, by a request behind the guard; it is in
no page and no log, and no answer that has it in its address is kept by a browser. What is edited is a copy in a
folder that goes with the server: the project's own notebooks stay as they are.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marimo._config.manager import get_default_config_manager
from marimo._server.lsp import NoopLspServer
from marimo._server.main import create_starlette_app
from marimo._server.session_manager import SessionManager
from marimo._server.tokens import AuthToken
from marimo._server.workspace import SingleFileWorkspace
from marimo._session.model import SessionMode
from marimo._utils.marimo_path import MarimoPath
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualizers.site import front_end

ABOUT = 1 << 12  # bytes of a request that names a notebook
# Of marimo's settings those that a reader's own would spoil: an edit that is kept, and no service elsewhere.
SETTINGS = {
    "save": {"autosave": "after_delay", "autosave_delay": 1000, "format_on_save": False},
    "runtime": {"auto_instantiate": True, "on_cell_change": "autorun", "show_tracebacks": True},
    "completion": {"copilot": False, "activate_on_typing": True},
    "display": {"theme": "system"},
}


class Sessions(SessionManager):
    """Starts kernels as processes of their own, beside those that are threads of this one.

    A new process begins with the main module of its parent. The kernels in threads put a notebook there, which
    would be run, or what is left of one that has ended: neither is for the new process.
    """

    async def _create_session(self, *given: Any, **named: Any) -> Any:
        before = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            return await super()._create_session(*given, **named)
        finally:
            sys.modules["__main__"] = before


class Editor:
    """Answers below ``prefix``: ``SECRET/STEM/`` is marimo's editor on a copy of the notebook."""

    def __init__(self, notebooks: Iterable[Path], prefix: str, asset_url: str, session_ttl: int) -> None:
        self._sources = {path.stem: path for path in notebooks}
        self._prefix, self._asset_url, self._session_ttl = prefix, asset_url, session_ttl
        self._secret = secrets.token_urlsafe(32)
        self._folder = tempfile.TemporaryDirectory(prefix="handbook-edit-", ignore_cleanup_errors=True)
        self._copied: dict[str, str] = {}
        self._managers: dict[str, Sessions] = {}
        self._router = Router()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = scope["path"].removeprefix(self._prefix).partition("/")[0]
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._secret.encode()):
            await _refuse(scope, receive, send)
            return

        async def unkept(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Cache-Control"] = "no-store"
                headers["Referrer-Policy"] = "same-origin"
            await send(message)

        await self._router(scope, receive, unkept)

    async def ask(self, request: Request) -> Response:
        """The address of a notebook's editor, below the site's root; with ``reset``, of a fresh copy.

        Asked by POST with JSON, which no page of another site can send unseen, and with the ``Origin`` that a
        browser adds to it: the guard has compared that with this host.
        """
        if (
            request.headers.get("origin") is None
            or request.headers.get("sec-fetch-site", "same-origin") != "same-origin"
        ):
            return PlainTextResponse("only a page of this site may open the editor\n", 403)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("the request must be JSON\n", 415)
        try:
            wish = json.loads((await request.body())[:ABOUT])
            stem, reset = str(wish["notebook"]), wish.get("reset") is True
        except (ValueError, LookupError, TypeError, AttributeError):
            return PlainTextResponse('the request must be like {"notebook": "batching", "reset": false}\n', 400)
        if stem not in self._sources:
            return PlainTextResponse(f"there is no notebook {stem!r} to edit\n", 404)
        self._copy(stem, reset)
        if stem not in self._managers:
            self._mount(stem)
        address = f"{self._prefix}{self._secret}/{stem}/"
        return JSONResponse({"address": address}, headers={"Cache-Control": "no-store"})

    def sessions(self) -> int:
        """How many kernels there are now."""
        return sum(len(manager.sessions) for manager in self._managers.values())

    async def shutdown(self) -> None:
        """Ends all kernels and forgets what was edited."""
        for manager in self._managers.values():
            await manager.shutdown()
        self._folder.cleanup()

    def _copy(self, stem: str, reset: bool) -> None:
        """Writes the copy where there is none, where it is asked for, and where only the project's own changed."""
        copy, own = self._path(stem), self._sources[stem].read_text(encoding="utf-8")
        untouched = copy.is_file() and copy.read_text(encoding="utf-8") == self._copied.get(stem)
        if not reset and copy.is_file() and not (untouched and own != self._copied.get(stem)):
            return
        if stem in self._managers:
            self._managers[stem].close_all_sessions()  # or a kernel that lives would write its own text back
        copy.write_text(own, encoding="utf-8")
        self._copied[stem] = own

    def _path(self, stem: str) -> Path:
        return Path(self._folder.name) / f"{stem}.py"

    def _mount(self, stem: str) -> None:
        """marimo's application on one file, as ``create_asgi_app`` makes it, yet in the mode that it does not offer."""
        config = get_default_config_manager(current_path=None).with_overrides(SETTINGS)  # type: ignore[arg-type]
        manager = Sessions(
            workspace=SingleFileWorkspace.from_path(MarimoPath(str(self._path(stem)))),
            mode=SessionMode.EDIT,
            quiet=True,
            include_code=True,
            lsp_server=NoopLspServer(),
            config_manager=config,
            cli_args={},
            argv=None,
            auth_token=AuthToken(""),  # the address has ours
            redirect_console_to_browser=False,
            ttl_seconds=self._session_ttl,
        )
        path = f"{self._prefix}{self._secret}/{stem}"
        app = create_starlette_app(base_url="", enable_auth=False, allow_origins=(), skew_protection=False)
        app.state.session_manager = manager
        app.state.base_url = path
        app.state.asset_url = self._asset_url
        app.state.config_manager = config
        app.state.enable_auth = False
        app.state.html_head = front_end.head()
        self._router.routes.append(Mount(path, app=app))
        self._managers[stem] = manager


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    answer: ASGIApp | None = None
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        answer = PlainTextResponse("Not found\n", 404)
        await answer(scope, receive, send)
