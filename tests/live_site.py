"""A few notebooks served live and exported for the browser: the shared material of the live level's tests."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from visualizers.site import wasm
from visualizers.site.config import Indexes

ROOT = Path(__file__).resolve().parents[1]

RAISES = """# /// script
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
import marimo
app = marimo.App()


@app.cell
def _():
    raise ValueError("the disk of this notebook is full")


if __name__ == "__main__":
    app.run()
"""

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Live</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="assets/css/live.css">
<script type="module" src="assets/js/live.js"></script></head><body>
{figures}</body></html>"""

FIGURE = """<hb-figure name="{name}"><figure class="hbf"><span class="hbf-title">{name}</span>
<button type="button" data-run>Run live</button><div class="hbf-live" data-live-slot></div></figure></hb-figure>"""


def write_project(root: Path, *stems: str) -> Path:
    """A copy of this project whose notebooks are those of ``stems`` and one that raises."""
    for name in ("minillm", "visualizers"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text"):
        shutil.copy(ROOT / name, root)
    (root / "notebooks").mkdir()
    for stem in stems:
        of_tests = ROOT / "tests" / "data" / "notebooks" / f"{stem}.py"  # with a control of its own
        shutil.copy(of_tests if of_tests.exists() else ROOT / "notebooks" / f"{stem}.py", root / "notebooks")
    (root / "notebooks" / "raises.py").write_text(RAISES)
    return root


def write_site(out: Path, *names: str) -> Path:
    """A page with a figure's frame for each name, without the figures' own script."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in ("js", "css"):
        (out / "assets" / folder).mkdir(parents=True)
        for file in (ROOT / "handbook" / "assets" / folder).glob("live*"):
            shutil.copy(file, out / "assets" / folder)
    figures = "".join(FIGURE.format(name=name) for name in names)
    (out / "index.html").write_text(PAGE.format(figures=figures))
    (out / "404.html").write_text("<!doctype html><title>Not found</title>")
    return out


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The address at which ``app`` is served, on a free port of loopback, in a thread."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10)


def wait_for(condition: Any, seconds: float = 60) -> None:
    """Until ``condition()`` holds; fails after ``seconds``, which is a limit and not a measurement."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds} s"
        time.sleep(0.05)


def live_of(app: Any) -> Any:
    """The notebooks of the server, below whatever is wrapped around it."""
    while not hasattr(app, "state"):
        app = app._app
    return app.state.live


class LoggingIndex:
    """The two indexes behind one address on loopback that notes every path that is asked for."""

    def __init__(self, upstream: Indexes) -> None:
        self.asked: list[str] = []
        pyodide, pypi = upstream.addresses(wasm.PYODIDE_VERSION)
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                _, kind, rest = self.path.split("/", 2)
                url = {"pyodide": pyodide, "simple": pypi}[kind].rstrip("/") + "/" + rest
                try:
                    request = urllib.request.Request(url, headers={"Accept": self.headers.get("Accept", "*/*")})
                    with urllib.request.urlopen(request, timeout=60) as response:
                        body, status, kind = response.read(), 200, response.headers.get("Content-Type", "")
                except urllib.error.HTTPError as error:
                    body, status, kind = b"", error.code, "text/plain"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{self._server.server_port}"
        self.indexes = Indexes(pyodide=f"{base}/pyodide/", pypi=f"{base}/simple/")

    def close(self) -> None:
        self._server.shutdown()


class Exported:
    """What one export made, and what it asked the indexes for."""

    def __init__(self, root: Path, folder: Path, result: wasm.ExportResult, index: LoggingIndex) -> None:
        self.root, self.folder, self.result, self.index = root, folder, result, index


@cache
def exported() -> Exported:
    """Three notebooks exported once for all tests. Skips where no index answers, which CI does not allow."""
    upstream = Indexes()
    missing = wasm.unreachable(upstream)
    if missing:
        if os.environ.get("CI") or os.environ.get("HANDBOOK_REQUIRE_WASM"):
            pytest.fail(missing)
        pytest.skip(missing)
    root = write_project(Path(tempfile.mkdtemp(prefix="handbook-wasm-")), "kv_cache_size", "live_run", "batching")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    index = LoggingIndex(upstream)
    atexit.register(index.close)
    folder = root / ".build" / "notebooks"
    result = wasm.export(root, folder, indexes=index.indexes, say=lambda _: None)
    return Exported(root, folder, result, index)
