"""One request to an ASGI application, and its answer, without a server."""

from __future__ import annotations

import asyncio
from typing import Any


class Answer:
    """Status, headers and body of one response."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.status = messages[0].get("status", 0)
        self.headers = {k.decode(): v.decode() for k, v in messages[0].get("headers", [])}
        self.body = b"".join(m.get("body", b"") for m in messages)


def ask(app: Any, path: str, method: str = "GET", kind: str = "http", **headers: str) -> Answer:
    """Calls an ASGI application; underscores in header names become dashes."""
    sent: list[dict[str, Any]] = []
    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in {"host": "127.0.0.1:8000", **headers}.items()]
    scope = {"type": kind, "method": method, "path": path, "query_string": b"", "headers": raw, "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return Answer(sent)
