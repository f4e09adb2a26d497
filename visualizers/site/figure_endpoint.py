"""``GET /figures/NAME.json?input=value`` on the local server: a figure computed at a program's own inputs."""

from __future__ import annotations

import re

import anyio.to_thread
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Scope

from visualizers.site.agents import AskedError, Book, as_json

_PATH = re.compile(r"figures/([a-z0-9-]+)\.json")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def asked(scope: Scope, prefix: str) -> str:
    """The name of the figure that a request asks to be computed; without inputs in the address it asks for a file."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or not scope["query_string"]:
        return ""
    found = _PATH.fullmatch(scope["path"].removeprefix(prefix))
    return found[1] if found else ""


async def answer(book: Book, name: str, query: QueryParams) -> Response:
    """The figure's record; 400 for a value that is not taken, 404 for a figure that is not, both as JSON."""
    doubled = [key for key in query if len(query.getlist(key)) > 1]
    if doubled:
        return _refused(f"{doubled[0]} is given twice", 400)
    known = book.names()
    if name not in known:
        return _refused(f"there is no figure {name!r}: choose from {', '.join(known)}", 404)
    try:
        found = await anyio.to_thread.run_sync(book.figure, name, dict(query))
    except AskedError as error:
        return _refused(str(error), 400)
    return Response(as_json(found), media_type="application/json", headers=_HEADERS)


def _refused(message: str, status: int) -> Response:
    return Response(as_json({"error": message}), status, headers=_HEADERS, media_type="application/json")
