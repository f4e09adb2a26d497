"""Tells open pages what an author changed, over a stream that only the local server has."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

PING_S = 15  # a stream that says nothing for long is cut by some browsers


class Events:
    """Who looks at a page now, and what they are told."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[str]] = set()
        # A page that sees another one has outlived a restart.
        self._boot = secrets.token_hex(8)

    def publish(self, **event: object) -> None:
        for queue in self._queues:
            queue.put_nowait(json.dumps(event))

    async def stream(self, _: Request) -> Response:
        return StreamingResponse(self._lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _lines(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield f"retry: 500\ndata: {json.dumps({'boot': self._boot})}\n\n"
            while True:
                try:
                    yield f"data: {await asyncio.wait_for(queue.get(), PING_S)}\n\n"
                except TimeoutError:
                    yield ": ping\n\n"
        finally:
            self._queues.discard(queue)
