"""Programs ask the book: by the official MCP client in process, over HTTP and on standard input; by addresses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from example_figure import VISUALIZER as EXAMPLE
from jsonschema import Draft202012Validator
from live_site import ROOT, served
from mcp import Client, StdioServerParameters

from visualizers import registry
from visualizers.contract import Number
from visualizers.levels import schema
from visualizers.levels.computed import ComputedFigures
from visualizers.levels.grid import grid
from visualizers.levels.snapshot import Snapshot
from visualizers.site.agents import Book, server
from visualizers.site.namespace import names
from visualizers.site.serve import application

TOOLS = {"list_figures", "compute_figure", "list_pages", "read_page", "search"}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    figures = ComputedFigures(folder=tmp_path_factory.mktemp("figures"))
    return Book(ROOT, figures, names(figures))


@pytest.fixture(scope="module")
def address(book: Book, built: Any) -> Iterator[str]:
    """A running server below a path, as ``handbook serve`` makes it."""
    with served(application(built.out, ROOT, root_path="/x/", book=book)) as base:
        yield f"{base}x/"


async def _use(target: Any) -> dict[str, Any]:
    """What a client does: lists, computes, asks for nonsense, reads, searches."""
    async with Client(target) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        asked = {"name": "kv-cache-size", "inputs": {"context": 4096, "batch": 2}}
        computed = await client.call_tool("compute_figure", asked)
        refused = await client.call_tool("compute_figure", {"name": "preemption", "inputs": {"pool": 5000}})
        unknown = await client.call_tool("compute_figure", {"name": "nothing"})
        pages = await client.call_tool("list_pages", {})
        page = await client.call_tool("read_page", {"page": "reference/glossary.md"})
        lost = await client.call_tool("read_page", {"page": "nowhere"})
        found = await client.call_tool("search", {"query": "what is TTFT", "limit": 3})
        figures = await client.call_tool("list_figures", {})
    return {
        "tools": tools,
        "computed": computed.structured_content,
        "refused": (refused.is_error, refused.content[0].text),
        "unknown": (unknown.is_error, unknown.content[0].text),
        "pages": pages.structured_content["result"],
        "page": page.content[0].text,
        "lost": (lost.is_error, lost.content[0].text),
        "found": found.structured_content["result"],
        "figures": figures.structured_content["result"],
    }


def _check(used: dict[str, Any]) -> None:
    assert used["tools"] == TOOLS
    values = used["computed"]
    assert values["inputs"]["context"] == 4096
    assert values["total_bytes"] == values["bytes_per_token"] * 4096 * 2
    assert values["recorded_at"]
    assert used["refused"][0]
    assert "4,096, 6,144, 8,192, 12,288 or 16,384 tokens" in used["refused"][1]
    assert used["unknown"][0]
    assert "choose from batching" in used["unknown"][1]
    assert {"index", "foundations/kv-cache", "reference/glossary"} <= {p["page"] for p in used["pages"]}
    assert "**TTFT** (also: time to first token)" in used["page"]
    assert used["lost"][0]
    assert "choose from index" in used["lost"][1]
    assert used["found"][0]["address"].endswith("reference/glossary/#ttft")
    assert {f["name"] for f in used["figures"]} == {v.name for v in registry.all()}


def test_the_official_client_uses_the_server_in_process(book: Book) -> None:
    _check(asyncio.run(_use(server(book))))


def test_the_official_client_uses_the_server_over_http(address: str) -> None:
    _check(asyncio.run(_use(f"{address}mcp")))


def test_the_official_client_uses_the_server_on_standard_input() -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "visualizers.site.cli", "mcp"], cwd=str(ROOT))
    _check(asyncio.run(_use(command)))


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["mcp", "figures/kv-cache-size.json?batch=2", "llms.txt"])
def test_strangers_are_refused(address: str, path: str, headers: dict[str, str]) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert httpx2.request(method, address + path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["figures/kv-cache-size.json?batch=2", "llms.txt", "robots.txt", "nowhere.md"])
def test_the_local_server_is_for_no_other_origin(address: str, path: str) -> None:
    assert not [h for h in httpx2.get(address + path).headers if h.lower().startswith("access-control-")]


def test_a_figure_is_computed_at_the_inputs_of_an_address(address: str, book: Book) -> None:
    answer = httpx2.get(f"{address}figures/kv-cache-size.json", params={"context": "4096", "dtype": "fp8"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found = answer.json()
    assert found["inputs"]["dtype"] == "fp8"
    expected = book.figure("kv-cache-size", {"context": 4096, "dtype": "fp8"})
    assert {k: v for k, v in found.items() if k != "recorded_at"} == {
        k: v for k, v in json.loads(json.dumps(expected)).items() if k != "recorded_at"
    }


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("figures/nothing.json?a=1", 404, "there is no figure 'nothing': choose from batching"),
        ("figures/preemption.json?pool=5000", 400, "pool 5000 has no state that is computed: choose from 4,096"),
        ("figures/kv-cache-size.json?context=0", 400, "context 0 is outside 1 to 1,048,576 tokens"),
        ("figures/kv-cache-size.json?length=1", 400, "kv-cache-size has no input 'length'"),
        ("figures/kv-cache-size.json?batch=1&batch=2", 400, "batch is given twice"),
    ],
)
def test_what_is_not_taken_is_said_as_json(address: str, path: str, status: int, said: str) -> None:
    answer = httpx2.get(address + path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


@pytest.mark.parametrize("path", ["figures/kv-cache-size.json?batch=2", "notebooks/live.json", "_events", "llms.txt"])
def test_a_method_that_is_not_allowed_hears_which_are(address: str, path: str) -> None:
    answer = httpx2.request("DELETE", address + path)
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("visualizer", registry.all(), ids=lambda v: v.name)
def test_the_schema_of_a_figure_takes_what_it_takes(visualizer: Any) -> None:
    takes = Draft202012Validator(schema.inputs(visualizer))
    Draft202012Validator.check_schema(schema.inputs(visualizer))
    Draft202012Validator.check_schema(schema.output(visualizer))
    assert takes.is_valid({})
    assert takes.is_valid(visualizer.defaults())
    assert not takes.is_valid({"nothing": 1})
    for given in visualizer.inputs:
        for value in given.ends():
            assert takes.is_valid({given.name: value})
        if isinstance(given, Number):
            between = (given.grid()[0] + given.grid()[-1]) / 2 + 0.01
            for value in (given.low - 1, given.high + 1, "many", *([between] if given.on_grid else [])):
                assert not takes.is_valid({given.name: value}), (given.name, value)


@pytest.mark.parametrize("name", ["kv-cache-size", "swap-or-recompute", "decode-ceiling"])
def test_the_schema_of_the_output_holds(book: Book, name: str) -> None:
    gives = Draft202012Validator(schema.output(registry.get(name)))
    assert list(gives.iter_errors(json.loads(json.dumps(book.figure(name, {}))))) == []


def test_a_grid_has_a_row_for_each_state() -> None:
    snapshot = Snapshot(EXAMPLE)
    found = grid(snapshot)
    assert found["columns"][:2] == ["model", "block"]
    assert [row[:2] for row in found["rows"]] == [[m, b] for m in ("small", "large") for b in (1, 16, 256)]
    (row,) = [row for row in found["rows"] if row[:2] == ["small", 16]]
    assert row[2:] == [found["default"][name] for name in EXAMPLE.units]


def test_a_page_is_found_by_any_of_its_addresses(book: Book) -> None:
    root = book._project().site_url
    texts = {
        book.page(n)
        for n in ("glossary", "reference/glossary/", "reference/glossary.md#ttft", f"{root}reference/glossary/index.md")
    }
    assert len(texts) == 1
