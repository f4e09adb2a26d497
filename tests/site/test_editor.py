"""The editor of the notebooks: who gets its address, what is refused, and that the project's files stay as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_site import RAISES, live_of

from visualizers.site.live import Live
from visualizers.site.serve import application

HOST = "127.0.0.1:8000"
OURS = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin", "content-type": "application/json"}
WISH = json.dumps({"notebook": "raises"})


class Asked:
    """One request to an ASGI application, and its answer."""

    def __init__(self, app: Any, path: str, body: str = "", kind: str = "http", method: str = "GET", **headers: str):
        self.sent: list[dict[str, Any]] = []
        raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in {"host": HOST, **headers}.items()]
        scope = {"type": kind, "method": method, "path": path, "query_string": b"", "headers": raw, "root_path": ""}
        first = {"type": f"{kind}.connect"} if kind == "websocket" else {"type": "http.request", "body": body.encode()}

        async def receive() -> dict[str, Any]:
            return first

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        asyncio.run(app(scope, receive, send))
        self.status = self.sent[0].get("status", 0)
        self.headers = {k.decode().lower(): v.decode() for k, v in self.sent[0].get("headers", [])}
        self.body = b"".join(m.get("body", b"") for m in self.sent)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "raises.py").write_text(RAISES)
    (tmp_path / "site").mkdir()
    return tmp_path


@pytest.fixture
def app(root: Path) -> Iterator[Any]:
    app: Any = application(root / "site", root, root_path="/x/")
    yield app
    asyncio.run(live_of(app).shutdown())


def address(app: Any) -> str:
    answer = Asked(app, "/x/live/_edit", WISH, method="POST", **OURS)
    assert answer.status == 200, answer.body
    assert answer.headers["cache-control"] == "no-store"
    return str(json.loads(answer.body)["address"])


def test_the_address_has_a_secret_that_is_new_at_each_start(root: Path, app: Any) -> None:
    first = address(app)
    assert first == address(app)
    prefix, secret = first.removesuffix("/raises/").rsplit("/", 1)
    assert prefix == "/x/live/_edit"
    assert len(secret) >= 40
    assert address(application(root / "site", root, root_path="/x/")) != first


def test_what_has_the_secret_in_its_address_is_not_kept(app: Any) -> None:
    page = Asked(app, address(app))
    assert page.status == 200
    assert b"marimo" in page.body
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    secret = address(app).split("/")[4].encode()
    assert secret not in Asked(app, "/x/notebooks/live.json").body
    assert secret not in Asked(app, "/x/live/raises/").body


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"origin": None}, 403),  # no browser's page
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),  # another server of this machine
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 415),  # what a form of another site could send
        ({"host": "evil.example"}, 403),
    ],
)
def test_only_a_page_of_ours_is_told(app: Any, change: dict[str, str | None], status: int) -> None:
    headers = {k: v for k, v in {**OURS, **change}.items() if v is not None}
    assert Asked(app, "/x/live/_edit", WISH, method="POST", **headers).status == status
    assert Asked(app, "/x/live/_edit", WISH, **OURS).status in (404, 405)  # an address alone, as of a link


@pytest.mark.parametrize(
    ("body", "status"),
    [("{", 400), ("[]", 400), ("{}", 400), ('{"notebook": "../x"}', 404), ('{"notebook": "none"}', 404)],
)
def test_a_wrong_wish_says_why(app: Any, body: str, status: int) -> None:
    assert Asked(app, "/x/live/_edit", body, method="POST", **OURS).status == status


@pytest.mark.parametrize("secret", ["", "x", "ä", "x" * 43, ".."])
def test_without_the_secret_there_is_nothing(app: Any, secret: str) -> None:
    address(app)
    for rest in ("raises/", "raises/api/kernel/run", "raises/terminal/ws"):
        assert Asked(app, f"/x/live/_edit/{secret}/{rest}", method="POST").status == 404
    refused = Asked(app, f"/x/live/_edit/{secret}/raises/ws", kind="websocket")
    assert refused.sent[0]["type"] == "websocket.close"


def test_the_guard_stands_before_the_secret(app: Any) -> None:
    there = address(app)
    assert Asked(app, there, origin="https://evil.example").status == 403
    assert Asked(app, there, host="evil.example").status == 403
    refused = Asked(app, f"{there}ws", kind="websocket", origin="http://127.0.0.1:9000")
    assert refused.sent[0]["type"] == "websocket.close"


@pytest.mark.parametrize("options", [{"edit": False}, {"host": "192.168.1.2"}, {"host": "0.0.0.0"}])  # noqa: S104
def test_without_an_editor_nothing_leads_to_one(root: Path, options: dict[str, Any]) -> None:
    app: Any = application(root / "site", root, root_path="/x/", **options)
    assert Asked(app, "/x/live/_edit", WISH, method="POST", **OURS).status == 404
    assert json.loads(Asked(app, "/x/notebooks/live.json").body)["edit"] is False
    assert live_of(app)._editor is None


def test_a_copy_is_edited_kept_and_restored(root: Path) -> None:
    live = Live(root, "/live/")
    editor = live._editor
    assert editor is not None
    source, copy = root / "notebooks" / "raises.py", editor._path("raises")
    assert not copy.is_relative_to(root)
    editor._copy("raises", reset=False)
    assert copy.read_text() == RAISES
    copy.write_text("edited")
    editor._copy("raises", reset=False)
    assert copy.read_text() == "edited"  # closed and opened again
    source.write_text(f"{RAISES}# newer\n")
    editor._copy("raises", reset=False)
    assert copy.read_text() == "edited"  # the reader's is not overwritten unasked
    editor._copy("raises", reset=True)
    assert copy.read_text() == source.read_text()
    source.write_text(RAISES)
    editor._copy("raises", reset=False)
    assert copy.read_text() == RAISES  # nothing of the reader's is in it
    asyncio.run(live.shutdown())
    assert not copy.exists()
