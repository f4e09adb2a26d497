"""Serves a built site: types, compression, validators, and Markdown for whoever asks for it.

An ASGI application over one folder, which may be replaced as a whole while it is served.
"""

from __future__ import annotations

import gzip
import mimetypes
import re
from collections import OrderedDict
from html import escape
from pathlib import Path
from urllib.parse import quote

import brotli
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".whl": "application/zip",
    ".woff2": "font/woff2",
    ".xml": "application/xml",
}
_COMPRESSED = re.compile(r"text/|application/(json|wasm|xml|manifest)|image/svg")
_SMALLEST = 600  # bytes; below it a packet is a packet
_CACHE_BYTES = 64 << 20
# Folders whose files carry a digest of their content in their address: a browser need not ask again. The theme's
# scripts are mended after they have their names.
_IMMUTABLE = re.compile(r"^notebooks/(assets|packages|lockfile)/|^assets/(?!javascripts/).*\.[0-9a-f]{8,}\.")


class Site:
    """The files of ``folder``. Nothing outside it and no hidden file is served, whatever the path says.

    ``events`` is the address of a stream that tells open pages of edits; each page is served with its name.
    """

    def __init__(self, folder: Path, events: str = "") -> None:
        self._folder = folder
        self._head = f'<meta name="hb-events" content="{escape(events)}"></head>'.encode() if events else b"</head>"
        self._encoded: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._respond(scope)
        await response(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return Response("GET and HEAD only\n", 405, {"Allow": "GET, HEAD"}, "text/plain")
        headers = Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")).lstrip("/")
        file = self._file(path)
        if file is None:
            return self._missing(path, headers)
        if file.is_dir():
            return RedirectResponse(f"{scope.get('root_path', '').rstrip('/')}/{quote(path)}/{_query(scope)}", 301)
        vary = ["Accept-Encoding"]
        twin = file.with_name("index.md")
        if file.name == "index.html" and twin.is_file():
            vary.insert(0, "Accept")
            if wants_markdown(headers.get("accept", "")):
                file = twin
        extra = {"Vary": ", ".join(vary), "Link": self._links(scope, file, path)}
        caching = "public, max-age=31536000, immutable" if _IMMUTABLE.match(path) else "no-cache"
        return self._send(file, headers, {**extra, "Cache-Control": caching})

    def _links(self, scope: Scope, file: Path, path: str) -> str:
        """Where the Markdown of a page is, and of a twin its page; of everything the list of all pages."""
        root = quote(scope.get("root_path", "").rstrip("/"))
        found = [f'<{root}/llms.txt>; rel="help"; type="text/plain"']
        if file.name == "index.html" and file.with_name("index.md").is_file():
            twin = f"{quote(path).rstrip('/')}.md" if path.strip("/") else "index.md"
            found.insert(0, f'<{root}/{twin}>; rel="alternate"; type="text/markdown"')
        return ", ".join(found)

    def _file(self, path: str) -> Path | None:
        """The file or folder of a path, or None; a path that ends in a slash is its index.html."""
        parts = path.split("/")
        if "\0" in path or "\\" in path or any(part.startswith(".") for part in parts):
            return None
        folder = self._folder.resolve()
        target = folder.joinpath(*parts, "index.html") if path.endswith("/") or not path else folder.joinpath(*parts)
        try:
            return target if target.exists() and target.resolve().is_relative_to(folder) else None
        except OSError:  # a name that is longer than any file's
            return None

    def _missing(self, path: str, headers: Headers) -> Response:
        wanted = path.endswith(".md") or wants_markdown(headers.get("accept", ""))
        page = self._folder / ("404.md" if wanted else "404.html")
        if not page.is_file():
            return Response("Not found\n", 404, media_type="text/plain")
        return self._send(page, headers, {"Vary": "Accept, Accept-Encoding", "Cache-Control": "no-cache"}, status=404)

    def _send(self, file: Path, headers: Headers, extra: dict[str, str], status: int = 200) -> Response:
        stat = file.stat()
        kind = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        encoding = _encoding(headers.get("accept-encoding", "")) if _compressible(kind, stat.st_size) else ""
        tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}{"-" + encoding if encoding else ""}"'
        extra = {**extra, "ETag": tag, "X-Content-Type-Options": "nosniff"}
        known = [part.strip().removeprefix("W/") for part in headers.get("if-none-match", "").split(",")]
        if status == 200 and (tag in known or known == ["*"]):  # the weak comparison, as RFC 9110 asks
            return Response(status_code=304, headers=extra)
        data = file.read_bytes()
        if file.suffix == ".html":
            data = data.replace(b"</head>", self._head, 1)
        if encoding:
            data = self._encode(data, str(file), tag, encoding)
            extra["Content-Encoding"] = encoding
        return Response(data, status, {**extra, "Content-Type": kind})

    def _encode(self, data: bytes, name: str, tag: str, encoding: str) -> bytes:
        """``data`` compressed; what was compressed before is remembered, the oldest forgotten."""
        key = (name, tag, encoding)
        if key in self._encoded:
            self._encoded.move_to_end(key)
            return self._encoded[key]
        packed = brotli.compress(data, quality=5) if encoding == "br" else gzip.compress(data, 6)
        self._encoded[key] = packed
        while sum(map(len, self._encoded.values())) > _CACHE_BYTES:
            self._encoded.popitem(last=False)
        return packed


def wants_markdown(accept: str) -> bool:
    """Whether a client prefers ``text/markdown``: it names it, and no other media type of a page ranks higher."""
    ranges = _qualities(accept)
    asked = ranges.get("text/markdown", 0.0)
    html = next((ranges[kind] for kind in ("text/html", "text/*", "*/*") if kind in ranges), 0.0)
    return asked > 0 and asked >= html


def _qualities(header: str) -> dict[str, float]:
    """Each media type or coding of a header with its weight; a weight that cannot be read counts as 0."""
    found: dict[str, float] = {}
    for entry in header.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = min(1.0, max(0.0, float(value)))
                except ValueError:
                    weight = 0.0
        if name:
            found[name] = max(weight, found.get(name, 0.0))
    return found


def _encoding(header: str) -> str:
    """``br`` or ``gzip`` where the client takes it, else nothing."""
    accepted = _qualities(header)
    return next((name for name in ("br", "gzip") if accepted.get(name, accepted.get("*", 0.0)) > 0), "")


def _compressible(kind: str, size: int) -> bool:
    return size >= _SMALLEST and bool(_COMPRESSED.match(kind))


def _query(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return f"?{query.decode('latin-1')}" if query else ""
