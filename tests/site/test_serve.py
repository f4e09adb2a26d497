"""The local server: what it sends, whom it refuses, what it says of edits."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import pytest
from asgi_asks import ask
from live_site import ROOT, wait_for
from small_book import write_book
from starlette.applications import Starlette
from starlette.routing import Mount

from visualizers.site.errors import SiteError
from visualizers.site.events import Events
from visualizers.site.guard import Guard, is_loopback
from visualizers.site.live import Live
from visualizers.site.serve import AddressError, _serve, bind, normal_root_path, run
from visualizers.site.static import Site, wants_markdown
from visualizers.site.watch import Watcher

HTML = "<!doctype html><head><title>x</title></head><p>" + "word " * 500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "kv" / "cache").mkdir(parents=True)
    (site / "notebooks" / "packages" / "ab12").mkdir(parents=True)
    (site / "kv" / "cache" / "index.html").write_text(HTML)
    (site / "kv" / "cache" / "index.md").write_text("# Cache\n" + "line\n" * 400)
    (site / "index.html").write_text("<p>home")
    (site / "404.html").write_text("<p>lost")
    (site / "a.wasm").write_bytes(b"\0asm" * 400)
    (site / "a.mjs").write_text("export {}")
    (site / ".handbook-build").write_text("marker")
    (site / "notebooks" / "packages" / "ab12" / "x.whl").write_bytes(b"PK")
    (tmp_path / "secret.txt").write_text("secret")
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    return site


@pytest.mark.parametrize(
    ("accept", "markdown"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", False),
        ("text/markdown", True),
        ("text/markdown, text/html;q=0.9", True),
        ("text/markdown, text/html, */*", True),
        ("text/markdown;q=0.5, text/html", False),
        ("text/markdown;q=0.5, text/*;q=0.6", False),
        ("text/markdown;q=0", False),
        ("TEXT/Markdown ; q=1.0", True),
        ("text/markdown;q=nonsense", False),
    ],
)
def test_markdown_is_for_those_who_ask(accept: str, markdown: bool) -> None:
    assert wants_markdown(accept) is markdown


def test_a_page_and_its_twin_share_an_address(folder: Path) -> None:
    site = Site(folder)
    html, markdown = ask(site, "/kv/cache/"), ask(site, "/kv/cache/", accept="text/markdown")
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
    assert markdown.body == (folder / "kv/cache/index.md").read_bytes()
    assert html.headers["vary"] == markdown.headers["vary"] == "Accept, Accept-Encoding"
    assert html.headers["etag"] != markdown.headers["etag"]


@pytest.mark.parametrize(("coding", "unpack"), [("br", brotli.decompress), ("gzip", gzip.decompress)])
def test_text_is_compressed(folder: Path, coding: str, unpack: Any) -> None:
    answer = ask(Site(folder), "/kv/cache/", accept_encoding=f"{coding}, identity")
    assert answer.headers["content-encoding"] == coding
    assert unpack(answer.body).decode() == HTML
    assert len(answer.body) < len(HTML) / 4


def test_what_a_client_refuses_is_not_sent(folder: Path) -> None:
    assert "content-encoding" not in ask(Site(folder), "/kv/cache/", accept_encoding="br;q=0, gzip;q=0").headers
    assert "content-encoding" not in ask(Site(folder), "/kv/cache/").headers


def test_types_and_caching(folder: Path) -> None:
    site = Site(folder)
    assert ask(site, "/a.wasm").headers["content-type"] == "application/wasm"
    assert ask(site, "/a.mjs").headers["content-type"] == "text/javascript; charset=utf-8"
    assert ask(site, "/").headers["cache-control"] == "no-cache"
    assert "immutable" in ask(site, "/notebooks/packages/ab12/x.whl").headers["cache-control"]


def test_an_unchanged_page_is_not_sent_again(folder: Path) -> None:
    site = Site(folder)
    first = ask(site, "/kv/cache/")
    again = ask(site, "/kv/cache/", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    (folder / "kv/cache/index.html").write_text(HTML + "more")
    assert ask(site, "/kv/cache/", if_none_match=first.headers["etag"]).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/kv/../../secret.txt",
        "/..\\secret.txt",
        "/link.txt",
        "/.handbook-build",
        "/kv/.hidden/",
        "/\0",
        "//etc/passwd",
        "/missing/",
        "/" + "a" * 5000,
        "/" + "a/" * 5000,
        "/a\udcff/",
    ],
)
def test_nothing_outside_the_site_is_served(folder: Path, path: str) -> None:
    answer = ask(Site(folder), path)
    assert answer.status == 404
    assert answer.body == b"<p>lost"


def test_a_folder_without_its_slash_redirects(folder: Path) -> None:
    answer = ask(Site(folder), "/kv/cache")
    assert (answer.status, answer.headers["location"]) == (301, "/kv/cache/")
    assert ask(Site(folder), "/", method="POST").status == 405


def test_a_notebook_without_its_slash_redirects() -> None:
    live = Live(ROOT, "/x/live/")
    answer = ask(live, "/x/live/block_manager")
    assert (answer.status, answer.headers["location"]) == (301, "/x/live/block_manager/")


async def _yes(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "LOCALHOST"}, True),
        ({"host": "evil.example"}, False),  # a name that was pointed at 127.0.0.1
        ({"host": "127.0.0.1.evil.example:8000"}, False),
        ({"host": ""}, False),
        ({"host": "["}, False),
        ({"host": "[::1"}, False),
        ({"origin": "http://["}, False),
        ({"origin": ""}, False),
        ({"origin": "http://user@127.0.0.1:8000"}, False),
        ({"origin": "ftp://127.0.0.1:8000"}, False),
        ({"sec_fetch_site": "same-site", "sec_fetch_dest": "iframe"}, False),  # another port of this machine
        ({"sec_fetch_site": "same-site", "sec_fetch_dest": "document"}, True),
        ({"sec_fetch_site": "none", "sec_fetch_dest": "image"}, True),
        ({"origin": "http://127.0.0.1:8000"}, True),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}, True),  # a link to a page
        ({"sec_fetch_site": "cross-site", "sec_fetch_dest": "iframe"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_dest": "empty"}, False),
        ({"sec_fetch_site": "same-origin", "sec_fetch_dest": "iframe"}, True),
    ],
)
def test_only_our_own_pages_reach_the_server(headers: dict[str, str], allowed: bool) -> None:
    app = Guard(_yes, ["127.0.0.1"])
    answer = ask(app, "/", **headers)
    assert (answer.status == 200) is allowed, answer.body
    if not allowed:
        assert answer.status == 403


def test_a_foreign_websocket_is_refused() -> None:
    refused: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        refused.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    headers = [(b"host", b"127.0.0.1:8000"), (b"origin", b"https://evil.example")]
    scope = {"type": "websocket", "path": "/live/x/ws", "headers": headers}
    asyncio.run(Guard(_yes, ["127.0.0.1"])(scope, receive, send))
    assert refused[0]["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.2", False)],  # noqa: S104
)
def test_other_hosts_than_loopback_are_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_port_in_use_says_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=rf"port {port} of 127.0.0.1 is in use: .*--port \d+"):
            bind("127.0.0.1", port)
        options = Namespace(host="127.0.0.1", port=port, root_path="/", out=None, no_edit=False)
        assert run(ROOT, options) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.1", 0, "give another --host or --port"),
        ("no-such-host.invalid", 0, "give another --host or --port"),
        ("é..b", 0, "'é..b' is no host"),
        ("", 0, "127.0.0.1 for this machine alone"),  # to the operating system, all addresses
        ("127.0.0.1", 65536, "there is no port 65536"),
        ("127.0.0.1", -1, "there is no port -1"),
        ("127.0.0.1", 10**30, "there is no port"),
    ],
)
def test_an_address_that_cannot_be_had_says_the_way_out(host: str, port: int, message: str) -> None:
    with pytest.raises(AddressError, match=message):
        bind(host, port)


@pytest.mark.parametrize(("given", "normal"), [("/", "/"), ("", "/"), ("x", "/x/"), ("/x", "/x/"), ("/x/y/", "/x/y/")])
def test_root_path(given: str, normal: str) -> None:
    assert normal_root_path(given) == normal


@pytest.mark.parametrize("given", ["..", "/a/../b", "a b", "a?b", "a#b", "a//b", "a%20b", "é", "."])
def test_what_is_no_root_path_says_the_way_out(given: str) -> None:
    with pytest.raises(AddressError, match="give letters, digits and dashes"):
        normal_root_path(given)
    assert run(ROOT, Namespace(host="127.0.0.1", port=0, root_path=given, out=None, no_edit=False)) == 2


class Rebuilds:
    """A builder that notes its calls and fails when told to."""

    def __init__(self) -> None:
        self.calls, self.problem = 0, ""
        self.error: type[Exception] = SiteError

    def update(self, out: Path) -> tuple[str, ...]:
        self.calls += 1
        if self.problem:
            raise self.error(self.problem)
        return ("kv/cache/",)


def _heard_after(root: Path, builder: Rebuilds, *edits: tuple[str, str]) -> list[dict[str, Any]]:
    """What a page hears while files are written; each edit waits for the news of the one before."""

    async def scenario() -> list[dict[str, Any]]:
        events, heard = Events(), []
        stream = events._lines()
        heard.append(await anext(stream))
        watching = asyncio.create_task(Watcher(root, root / "out", builder, events).run())
        await asyncio.sleep(1)  # the watcher has to be there first
        for name, text in edits:
            (root / name).write_text(text)
            heard.append(await asyncio.wait_for(anext(stream), 20))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return [json.loads(line.split("data: ")[1]) for line in heard]

    return asyncio.run(scenario())


def test_pages_hear_of_edits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "notebooks").mkdir()
    builder = Rebuilds()
    boot, page, notebook = _heard_after(
        tmp_path, builder, ("handbook/page.md", "new"), ("notebooks/live_run.py", "import marimo")
    )
    assert boot["boot"]
    assert page == {"pages": ["kv/cache/"], "assets": False}
    assert notebook == {"notebooks": ["live_run"]}
    assert builder.calls == 1  # a notebook is read anew by its next kernel: nothing to build
    assert "handbook/page.md: 1 pages" in capsys.readouterr().out


def test_files_and_folders_that_are_replaced_are_still_seen(tmp_path: Path) -> None:
    """Editors write another file and rename it; git puts another folder where one was."""
    root = tmp_path / "project"
    (root / "handbook").mkdir(parents=True)
    (root / "mkdocs.yml").write_text("one")
    builder = Rebuilds()

    async def scenario() -> None:
        watching = asyncio.create_task(Watcher(root, tmp_path / "out", builder, Events()).run())
        await asyncio.sleep(1)

        async def seen(edit: Callable[[], object]) -> None:
            before = builder.calls
            edit()
            for _ in range(400):
                if builder.calls > before:
                    break
                await asyncio.sleep(0.05)
            assert builder.calls > before
            await asyncio.sleep(1)  # what belongs to this edit is over

        def replace(text: str) -> None:
            (root / "mkdocs.new").write_text(text)
            (root / "mkdocs.new").replace(root / "mkdocs.yml")

        await seen(lambda: replace("two"))
        await seen(lambda: replace("three"))
        await seen(lambda: (root / "handbook").rename(root / "elsewhere"))
        await seen((root / "handbook").mkdir)
        await seen(lambda: (root / "handbook" / "page.md").write_text("new"))
        calls = builder.calls
        (root / "llms.txt").write_text("not a source")
        (root / ".build").mkdir()
        await asyncio.sleep(1)
        assert builder.calls == calls
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())


def test_a_page_that_is_wrong_is_said_and_the_server_goes_on(tmp_path: Path) -> None:
    (tmp_path / "handbook").mkdir()
    builder = Rebuilds()
    builder.problem = "handbook/page.md:3: no such figure"
    _, problem = _heard_after(tmp_path, builder, ("handbook/page.md", "broken"))
    assert problem == {"problem": "handbook/page.md:3: no such figure"}


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, RecursionError])
def test_no_edit_ends_the_server(tmp_path: Path, error: type[Exception]) -> None:
    (tmp_path / "handbook").mkdir()
    builder = Rebuilds()
    builder.problem, builder.error = "gone", error
    heard = _heard_after(tmp_path, builder, ("handbook/page.md", "one"), ("handbook/page.md", "two"))
    assert [error.__name__ in entry["problem"] for entry in heard[1:]] == [True, True]
    assert builder.calls == 2


def test_where_edits_cannot_be_watched_the_site_is_served_all_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Blind:
        async def run(self) -> None:
            raise OSError("OS file watch limit reached")

    async def scenario() -> bool:
        with bind("127.0.0.1", 0) as listener:
            app = Starlette(routes=[Mount("/", app=Site(folder))])
            serving = asyncio.create_task(_serve(app, listener, Blind(), "http://x/"))  # type: ignore[arg-type]
            await asyncio.sleep(1)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            answer = await reader.read()
            assert b"<p>home" in answer
            signal.raise_signal(signal.SIGINT)  # as uvicorn is told to end
            with contextlib.suppress(KeyboardInterrupt):
                return await serving
            return False

    with contextlib.suppress(KeyboardInterrupt):
        assert not asyncio.run(scenario())
    assert "Edits are no longer seen (OS file watch limit reached)" in capsys.readouterr().out


def test_new_code_ends_the_watch_and_broken_code_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "visualizers").mkdir()
    module = tmp_path / "visualizers" / "new.py"

    async def scenario() -> bool:
        watching = asyncio.create_task(Watcher(tmp_path, tmp_path, Rebuilds(), Events()).run())
        await asyncio.sleep(1)
        module.write_text("def half(")
        await asyncio.sleep(2)
        assert not watching.done()
        module.write_text("def whole(): pass\n")
        await asyncio.wait_for(watching, 20)
        return watching.done()

    assert asyncio.run(scenario())
    assert "still serving the code from before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [(signal.SIGINT, 0, "Stopped."), (signal.SIGHUP, 0, "Stopped."), (signal.SIGTERM, 143, "")],
)
def test_the_command_serves_and_ends_on_a_signal(tmp_path: Path, number: signal.Signals, code: int, last: str) -> None:
    """The whole way with a book of two pages: port taken, built, served below a path, ended by Ctrl-C."""
    root = write_book(tmp_path / "book")
    (root / "notebooks").mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"Namespace(host='127.0.0.1', port={port}, root_path='/x/', out=None, no_edit=False)"
    script = f"""
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
sys.path.append("tests")
from small_book import NAMES, CardboardFigures
from minillm.process import prepare
from visualizers.site import build, serve

prepare()
build.Builder.of = classmethod(lambda cls, root, **given: cls(root, CardboardFigures(), NAMES, **given))
sys.exit(serve.run(Path({str(root)!r}), {options}))
"""
    command = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "Serving on" in line:
                break
        assert f"http://127.0.0.1:{port}/x/" in "".join(lines), lines
        server.send_signal(number)
        rest = server.stdout.read()
        wait_for(lambda: server.poll() is not None)
    assert server.returncode == code, rest
    assert rest.strip().endswith(last), rest
    assert "Traceback" not in rest
