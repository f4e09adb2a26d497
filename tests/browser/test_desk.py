"""The desk in a real Chromium, on a kernel of this machine and in the browser's own Python: data read, not pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from desk_page import DeskPage
from live_pages import plain, run_live
from live_site import exported, live_of, served, write_project, write_site
from playwright.sync_api import Browser, Page, expect

from visualizers.desk.asks import poisson
from visualizers.desk.recipe import Recipe
from visualizers.desk.setup import Setup
from visualizers.site.files import place_tree
from visualizers.site.serve import application

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 900}, accept_downloads=True)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    root = write_project(tmp_path_factory.mktemp("project"), "batching")
    app = application(write_site(tmp_path_factory.mktemp("site"), "batching"), root)
    with served(app) as address:
        yield address, app


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = write_site(tmp_path_factory.mktemp("published"), "batching")
    place_tree(exported().folder, site / "notebooks")
    with served(plain(site)) as address:
        yield address


@pytest.fixture(params=["local", "published"])
def address(request: pytest.FixtureRequest) -> str:
    given = request.getfixturevalue(request.param)
    return str(given if isinstance(given, str) else given[0])


def opened(page: Page, address: str, **inputs: object) -> DeskPage:
    return DeskPage(run_live(page, address, "batching", **inputs))


def recipe(**changed: Any) -> str:
    return Recipe(**changed).packed()


ONE = {"requests": (), "b": None}


def test_plots_move_and_what_a_reader_sends_by_mouse_and_keyboard_arrives(page: Page, address: str) -> None:
    desk = opened(page, address)
    first = desk.until(lambda s: len(s["series"].get("itl_ms", [])) > 5)
    later = desk.until(lambda s: len(s["series"]["itl_ms"]) > len(first["series"]["itl_ms"]) + 20)
    assert later["series"]["kv_used_bytes"][-1][0] > first["series"]["kv_used_bytes"][-1][0]
    assert len({value for _, value in later["series"]["kv_used_bytes"]}) > 2
    assert later["series"]["memory_bytes"][-1][1] > 1 << 20
    desk.control("prompt").fill("My fellow citizens, today")
    desk.control("max_tokens").fill("9")
    desk.control("send").click()
    sent = desk.until(lambda s: [r for r in s["requests"] if r["prompt"] == "My fellow citizens, today"])
    assert sent["sides"]["b"]["requests"][-1]["prompt"] == "My fellow citizens, today"
    desk.control("prompt").fill("We must not")
    desk.control("prompt").press("Enter")
    done = desk.until(
        lambda s: [r for r in s["requests"] if r["prompt"] == "We must not" and r["output_tokens"] == 9], 240
    )
    told = next(r for r in done["requests"] if r["prompt"] == "We must not")
    assert told["text"].strip()
    assert told["ttft_ms"] > 0


def test_continuous_batching_beats_static(page: Page, address: str) -> None:
    # In modelled time: what this machine takes beside other work says nothing.
    desk = opened(
        page,
        address,
        desk=recipe(
            a=Setup(policy="continuous"),
            b=Setup(policy="static"),
            requests=poisson(20, ("The state of our union is",), (16, 96, 24, 48), 24),
            speed=20,
            clock="modelled/h100-sxm",
            model="llama-3.1-8b",
        ),
    )
    state = desk.until(lambda s: s.get("compared", {}).get("rounds", 0) >= 1)
    row = next(r for r in state["compared"]["rows"] if r["name"] == "ttft_s")
    assert (row["winner"], row["clear"]) == ("A", True), state["compared"]
    assert "Modelled time has no spread" in state["compared"]["sentence"]
    expect(desk.element.locator(".verdict")).to_contain_text("A wins")
    expect(desk.element.locator("table tbody tr")).to_have_count(len(state["compared"]["rows"]))


def test_pause_step_and_run_again(page: Page, address: str) -> None:
    desk = opened(page, address, desk=recipe(requests=(), rate=4.0))
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 3)
    desk.control("pause").click()
    desk.until(lambda s: s["paused"])
    still = desk.state()["time_s"]
    page.wait_for_timeout(600)
    assert desk.state()["time_s"] == still
    steps = len(desk.state()["series"]["kv_used_bytes"])
    for more in (1, 2, 3):
        desk.control("step").click()
        desk.until(lambda s, more=more: len(s["series"]["kv_used_bytes"]) == steps + more)
    desk.control("pause").press("Enter")
    desk.until(lambda s: not s["paused"] and len(s["series"]["kv_used_bytes"]) > steps + 8)


def test_burst_rate_abort_lever_and_comparison_by_their_controls(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), speed=0.1))
    desk.control("max_tokens").fill("200")
    desk.control("send").click()
    desk.until(lambda s: len(s["requests"]) == 1 and s["requests"][0]["status"] == "running")
    desk.element.locator(".lanes").click(position={"x": 20, "y": 10})
    desk.control("abort").click()
    desk.until(lambda s: s["requests"][0]["status"] == "aborted")
    desk.control("burst").click()
    desk.until(lambda s: len(s["requests"]) == 9)
    desk.control("rate").focus()
    for _ in range(8):
        desk.control("rate").press("ArrowRight")
    expect(desk.control("rate-told")).to_have_text("4 a second")
    desk.control("speed").select_option("5")
    desk.until(lambda s: len(s["requests"]) > 10)
    before = desk.state()["recipe"]
    desk.element.locator("details.levers summary").first.click()
    desk.control("lever-A-batch").select_option("2")
    desk.until(lambda s: s["recipe"] != before)
    expect(desk.element.locator(".notes")).to_contain_text("A is a new engine (Largest batch: 2)")
    desk.control("compare").check()
    both = desk.until(lambda s: "sides" in s and s["sides"]["b"]["requests"])
    assert [r["arrival_s"] for r in both["sides"]["a"]["requests"]][:8] == [
        r["arrival_s"] for r in both["sides"]["b"]["requests"]
    ][:8]


def test_what_is_refused_is_said_and_nothing_is_lost(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), a=Setup(pool="128")))
    desk.control("max_tokens").fill("500")
    desk.control("send").click()
    state = desk.until(lambda s: s["requests"])
    assert state["requests"][0]["status"] == "refused"
    expect(desk.element.locator(".notes")).to_contain_text("Request 1 was refused")
    desk.control("max_tokens").fill("3")
    desk.control("send").click()
    desk.until(lambda s: [r["status"] for r in s["requests"]] == ["refused", "done"])
    desk.element.locator("details.more summary").click()
    desk.control("trace").fill("at_s,prompt_tokens,max_tokens\n0,12,oops")
    desk.control("send-trace").click()
    expect(desk.element.locator(".notes")).to_contain_text("row 1 of the trace: max_tokens is 'oops'")
    desk.control("trace").fill("at_s,prompt_tokens,max_tokens\n0,12,4\n0.2,20,5")
    desk.control("send-trace").click()
    desk.until(lambda s: [r["output_tokens"] for r in s["requests"]] == [4, 5])


def test_a_step_that_is_pointed_at_lights_up_everywhere(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), rate=6.0))
    # Longer than the shortest window, however quick the machine is: else there is nothing to look back to.
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 60 and s["time_s"] > 2)
    desk.control("pause").click()
    desk.until(lambda s: s["paused"])
    readout = desk.element.locator(".readout")
    expect(readout).to_contain_text("Last step")
    desk.element.locator(".plot .u-over").nth(1).hover(position={"x": 60, "y": 20})
    expect(readout).to_contain_text("Plan of step")
    state = desk.until(lambda s: s["view"]["hover"] is not None)
    assert state["view"]["from"] <= state["view"]["hover"] <= state["view"]["to"]
    desk.element.locator(".lanes").first.focus()
    before = readout.inner_text()
    desk.element.locator(".lanes").first.press("ArrowLeft")
    expect(readout).not_to_have_text(before)
    desk.control("span").select_option("0.5")
    desk.control("back").fill("300")
    state = desk.until(lambda s: not s["view"]["follows"])
    assert state["view"]["to"] - state["view"]["from"] == pytest.approx(0.5)
    desk.control("now").click()
    desk.until(lambda s: s["view"]["follows"])


def test_downloads_hold_the_run_with_its_settings(page: Page, local: tuple[str, Any], tmp_path: Path) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), rate=4.0))
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 10)
    desk.element.locator("details.more summary").click()
    for kind in ("json", "csv", "perfetto"):
        with page.expect_download() as waiting:
            desk.control(f"export-{kind}").click()
        waiting.value.save_as(tmp_path / kind)
    told = json.loads((tmp_path / "json").read_text())
    assert told["sides"]["A"]["steps"]
    assert {"title", "machine", "date", "settings", "recipe"} <= set(told)
    assert (tmp_path / "csv").read_text().startswith("side,t0,t1,")
    assert json.loads((tmp_path / "perfetto").read_text())["traceEvents"]
    with page.expect_download() as waiting:
        desk.control("picture").click()
    assert waiting.value.suggested_filename.endswith(".png")
    waiting.value.save_as(tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off(page: Page, local: tuple[str, Any], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    desk = opened(page, local[0])
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 20)
    desk.element.locator("details.more summary").click()
    desk.element.locator("details.levers summary").first.click()
    assert desk.outside() == []
    inside = desk.element.evaluate("e => e.ownerDocument.documentElement.scrollWidth - innerWidth")
    assert inside <= 0


def test_with_reduced_motion_nothing_moves_by_itself(browser: Browser, local: tuple[str, Any]) -> None:
    page = browser.new_context(reduced_motion="reduce").new_page()
    desk = opened(page, local[0])
    page.wait_for_timeout(1500)
    state = desk.state()
    assert state["paused"]
    assert state["series"]["kv_used_bytes"] == []
    desk.control("pause").click()
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 5)
    page.context.close()


def test_out_of_sight_it_rests_and_goes_on_when_seen_again(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), rate=4.0))
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 5)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<div style=height:6000px></div>')")
    page.evaluate("scrollTo(0, 6000)")
    page.wait_for_timeout(1500)
    still = desk.state()["time_s"]
    page.wait_for_timeout(1500)
    assert desk.state()["time_s"] == still
    page.evaluate("scrollTo(0, 0)")
    desk.until(lambda s: s["time_s"] > still)


def test_a_kernel_that_is_gone_is_told_and_the_picture_stays(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk=recipe(requests=(), rate=4.0))
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 5)
    for manager in live_of(local[1])._managers():
        for session in list(manager.sessions):
            manager.close_session(session)
    expect(desk.element.locator(".alarm")).to_contain_text("does not answer", timeout=60_000)
    assert desk.state()["series"]["kv_used_bytes"]


def test_a_recipe_in_the_address_that_cannot_be_read_is_said(page: Page, local: tuple[str, Any]) -> None:
    desk = opened(page, local[0], desk="nonsense")
    expect(desk.element.locator(".notes")).to_contain_text("cannot be read")
    desk.until(lambda s: len(s["series"]["kv_used_bytes"]) > 5)  # and the chapter's own runs
