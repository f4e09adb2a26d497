"""A real Chromium for tests, and pages that report whatever goes wrong on them."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from visualizers.site import browser as chromium


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless Chromium; where there is none, the test is skipped and says what brings one."""
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium: python -m visualizers.site.browser --install")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.flags())
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing: a test that fails says enough."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address, ending in a slash, at which the files of ``folder`` are served on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def watched(page: Page) -> list[str]:
    """What goes wrong on the page from now on: console errors and warnings, exceptions, failed requests.

    A request that was under way when the page was left is none: it was not needed any more.
    """
    troubles: list[str] = []
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.on("requestfailed", lambda r: r.failure == "net::ERR_ABORTED" or troubles.append(f"{r.url}: {r.failure}"))
    return troubles
