"""Serves the built site with live notebooks in one process, and builds again what an author edits.

``handbook serve`` ends here: static pages, ``/live/`` with kernels of this machine, an event stream that
reloads the page that was edited. Bound to loopback unless told otherwise, since notebooks run code.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualizers.site import agents, figure_endpoint
from visualizers.site.agents import Book
from visualizers.site.events import Events
from visualizers.site.guard import Guard, is_loopback
from visualizers.site.live import Live
from visualizers.site.static import Site
from visualizers.site.watch import Watcher


class AddressError(Exception):
    """The host or the port cannot be had; the message names the way out."""


def application(
    out: Path,
    root: Path,
    *,
    root_path: str = "/",
    host: str = "127.0.0.1",
    events: Events | None = None,
    book: Book | None = None,
    edit: bool = True,
) -> ASGIApp:
    """The site of ``out`` with the notebooks of the project at ``root``, all below ``root_path``.

    With ``book``, figures are computed at the inputs of an address, and an MCP server answers at ``mcp``.
    Where other machines reach ``host`` there is no editor, whatever ``edit`` says: it runs what is typed.
    """
    prefix = normal_root_path(root_path)
    events = events or Events()
    edit = edit and is_loopback(host)
    live = Live(root, f"{prefix}live/", edit=edit)

    async def status(_: Request) -> Response:
        notebooks: dict[str, object] = {stem: {} for stem in live.stems}
        body = {"local": True, "notebooks": notebooks, "front": live.front, "edit": edit}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    tools = agents.mount(book, f"{prefix}mcp") if book else None

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(asyncio.to_thread(live.warm))
        async with tools.router.lifespan_context(tools) if tools else nullcontext():
            yield
        await warming
        await live.shutdown()

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        # marimo's mounts carry the whole address, since it writes that address into its pages.
        inside: ASGIApp = live if scope["path"].startswith(f"{prefix}live/") else site
        if tools and scope["path"] == f"{prefix}mcp":
            inside = tools
        elif book and (figure := figure_endpoint.asked(scope, prefix)):
            inside = await figure_endpoint.answer(book, figure, Request(scope).query_params)
        await inside(scope, receive, send)

    site = _Below(prefix, Site(out, f"{prefix}_events"))
    routes: list[Route | Mount] = [
        Route(f"{prefix}notebooks/live.json", status),
        Route(f"{prefix}_events", events.stream),
    ]
    if prefix != "/":
        routes += [Route(path, lambda _: RedirectResponse(prefix)) for path in ("/", prefix.rstrip("/"))]
    app = Starlette(routes=[*routes, Mount("/", app=dispatch)], lifespan=lifespan)
    app.state.live = live
    return Guard(_Allowing(app), [host])


class _Allowing:
    """Says ``Allow`` with every 405: parts of the server that are not ours leave it out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 405:
                MutableHeaders(scope=message).setdefault("Allow", "GET, HEAD")
            await send(message)

        await self._app(scope, receive, complete)


class _Below:
    """An application whose paths start at ``prefix``; it answers there, and 404 elsewhere."""

    def __init__(self, prefix: str, app: ASGIApp) -> None:
        self._prefix, self._app = prefix, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["type"] != "http" or not path.startswith(self._prefix):
            await Response("Not found\n", 404, media_type="text/plain")(scope, receive, send)
            return
        await self._app({**scope, "root_path": self._prefix.rstrip("/")}, receive, send)


def normal_root_path(root_path: str) -> str:
    """``/x/`` for ``x``, ``/x`` and ``/x/``; ``/`` for the root. Raises :class:`AddressError` for what is no path."""
    inner = root_path.strip("/")
    if not inner:
        return "/"
    if not all(re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", part) for part in inner.split("/")):
        raise AddressError(f"{root_path!r} is no path to serve below: give letters, digits and dashes, as in /book/")
    return f"/{inner}/"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises :class:`AddressError`, with the way out, where the port or the host cannot be had."""
    if not 0 <= port <= 65535:
        raise AddressError(
            f"there is no port {port}: give one from 1024 to 65535 with --port, or 0 for any that is free"
        )
    if not host:
        raise AddressError("the host is empty: give an address with --host, 127.0.0.1 for this machine alone")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except PermissionError as error:
        listener.close()
        raise AddressError(f"port {port} is for the system: choose one above 1023 with --port") from error
    except TypeError as error:  # a name that cannot be written as a host's
        listener.close()
        raise AddressError(f"{host!r} is no host: give an address with --host") from error
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            free = _free_port(host, family)
            way_out = f"stop what uses it, or choose another: --port {free} (make serve PORT={free})"
            raise AddressError(f"port {port} of {host} is in use: {way_out}") from error
        reason = error.strerror or str(error)
        raise AddressError(f"cannot listen on {host}:{port} ({reason}): give another --host or --port") from error
    return listener


def _free_port(host: str, family: socket.AddressFamily) -> int:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def run(root: Path, options: Namespace) -> int:
    """The command ``handbook serve``: builds, then serves until Ctrl-C. 2 where host or port cannot be had.

    The port is taken first, so that a build is not made in vain.
    """
    try:
        prefix = normal_root_path(options.root_path)
        listener = bind(options.host, options.port)
    except AddressError as error:
        print(f"handbook: {error}", file=sys.stderr)
        return 2
    with listener:
        return _run(root, options, listener, prefix)


def _run(root: Path, options: Namespace, listener: socket.socket, prefix: str) -> int:
    from visualizers.site.build import Builder

    host = options.host
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}{prefix}"
    if not is_loopback(host):
        print(f"warning: other machines reach {host}, and live notebooks run code for whoever reaches them")
        print("so there is no editing in the page: that takes a host that this machine alone reaches")
    out = (options.out or root / ".build" / "serve").resolve()
    builder = Builder.of(root, site_url=address, live=True)
    builder.build(out)
    events = Events()
    book = Book(root, builder.figures, builder.namespace, address)
    edit = not options.no_edit
    app = application(out, root, root_path=prefix, host=host, events=events, book=book, edit=edit)
    restart = False
    with suppress(KeyboardInterrupt):
        restart = asyncio.run(_serve(app, listener, Watcher(root, out, builder, events), address))
    if restart:
        listener.close()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this very command
    print("Stopped.")
    return 0


async def _serve(app: ASGIApp, listener: socket.socket, watcher: Watcher, address: str) -> bool:
    """Runs until the server is told to end; returns whether that was for new code."""
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    watching = asyncio.create_task(watcher.run())

    async def announce() -> None:
        while not server.started:
            await asyncio.sleep(0.02)
        print("Notebooks run on this machine, not in the browser: `handbook build` makes the site where they can")
        print(f"Serving on {address} with live notebooks on this machine (Ctrl-C ends it)", flush=True)

    def hang_up() -> None:  # the terminal was closed; uvicorn knows the other signals
        server.should_exit = True

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            server.should_exit = True
        else:  # too many watched files on this machine, or a folder that went: the site is served all the same
            print(f"Edits are no longer seen ({task.exception()}): start anew when that is mended", flush=True)

    watching.add_done_callback(ended)
    announcing = asyncio.create_task(announce())
    await server.serve(sockets=[listener])
    announcing.cancel()
    restart = watching.done() and not watching.cancelled() and watching.exception() is None
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return restart
