"""Lets only this machine's own pages talk to the local server, which runs code for whoever reaches it.

A server on loopback is still reached by any page that a browser has open: by a cross-site request, by a
cross-site WebSocket (which no same-origin rule stops), or by a name that an attacker points at 127.0.0.1
(DNS rebinding). So a request must name this host by an address or by a name it was told, and a request that
says where it comes from must come from here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose


class Guard:
    """Refuses a foreign ``Host`` or ``Origin`` with 403, a WebSocket before it opens."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        reason = self._refused(Headers(scope=scope))
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(1008, reason)(scope, receive, send)
        else:
            await PlainTextResponse(f"{reason}\n", 403)(scope, receive, send)

    def _refused(self, headers: Headers) -> str:
        host = headers.get("host", "")
        name = _host_name(f"//{host}")
        if name not in self._names and not _is_address(name):
            return (
                f"this server does not answer to the host name {name!r}: open it by its address, or give --host {name}"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return f"a page of {origin} may not use this server"
        # A link from elsewhere may open a page; nothing else of another site may load, post to or frame one.
        # Other ports of this machine are the same site to a browser, and others' pages to us.
        site = headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and headers.get("sec-fetch-dest") != "document":
            return "a page of another site may not use this server"
        return ""


def _host_name(address: str) -> str:
    """The name in an address, in small letters; empty where it is none that can be read."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on ``host``."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
