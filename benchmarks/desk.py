"""What watching an engine costs: a desk with 32 requests without a page, and in a real Chromium.

    python benchmarks/desk.py                     # without a page
    python benchmarks/desk.py --site OUT          # and in the browser's Python; `handbook build` has filled OUT
    python benchmarks/desk.py --site OUT --local  # and on a kernel of this machine
    python benchmarks/desk.py --site OUT --soak 600

- ``record_share``, ``tell_share``: processor time of keeping the record and of making the messages for the page,
  over that of the engine's steps, with 32 requests that decode together.
- ``start_s``: from the click to the first point of a plot. ``frames_per_s`` and ``draw_share``: while 32 requests
  run, how often the page draws and which share of its time that takes (the engine has another thread).
- ``control_ms``: from a press of "Pause" until the page has the kernel's answer, the median of several.
- soak: heap, nodes and frames a second at the end of so many seconds, over those after the first tenth.

Where it flatters: the server is on the same machine. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import cpu_name, report
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from site_speed import running, served

from visualizers.desk.asks import every
from visualizers.desk.recipe import Recipe
from visualizers.desk.session import Session
from visualizers.desk.setup import Setup
from visualizers.site import browser as chromium
from visualizers.site.serve import application

ROOT = Path(__file__).resolve().parents[1]
MANY = 32
FRAME_S = 1 / 15


def busy(max_tokens: int) -> Recipe:
    return Recipe(
        a=Setup(batch=str(MANY), pool="4096"),
        requests=every(0.0, ("The state of our union is",), (max_tokens,), MANY),
        max_tokens=max_tokens,
    )


def without_a_page() -> dict[str, float]:
    """Shares of the engine's processor time, over a run of 32 requests of 96 tokens."""
    session = Session(busy(96))
    side = session.sides[0]
    spent = {"record": 0.0, "tell": 0.0, "engine": 0.0}
    step, record = side.engine.step, side.record.step

    def timed(name: str, work: Any) -> Any:
        def call(*args: Any) -> Any:
            began = time.process_time()
            try:
                return work(*args)
            finally:
                spent[name] += time.process_time() - began

        return call

    side.engine.step = timed("engine", step)  # type: ignore[method-assign]
    side.record.step = timed("record", record)  # type: ignore[method-assign]
    tell = timed("tell", lambda: json.dumps(session.news()))
    session.everything()
    due_s = 0.0
    while not session.rests:
        session.advance(0.02)
        if time.perf_counter() >= due_s:
            tell()
            due_s = time.perf_counter() + FRAME_S
    return {
        "steps": side.record.num_steps,
        "engine_ms_a_step": 1e3 * spent["engine"] / side.record.num_steps,
        "record_share": spent["record"] / spent["engine"],
        "tell_share": spent["tell"] / spent["engine"],
    }


def opened(page: Page, address: str) -> tuple[Locator, float]:
    """The desk of the chapter on batching, and the seconds from the click to the first point of a plot."""
    page.goto(address, wait_until="networkidle")
    figure = page.locator("hb-figure[name=batching]")
    figure.scroll_into_view_if_needed()
    page.locator("hb-figure[name=batching][data-ready]").wait_for()
    began = time.perf_counter()
    figure.locator("[data-run]").click()
    desk = figure.frame_locator("iframe").locator("[data-hb-desk]").first
    desk.wait_for(timeout=240_000)
    while not desk.evaluate("e => e.state().series.kv_used_bytes?.length > 0"):
        time.sleep(0.01)
    return desk, time.perf_counter() - began


def in_a_page(browser: Browser, base: str, soak_s: float) -> dict[str, Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    at = f"{base}scheduling/batching/"
    starts = []
    for _ in range(2):
        _, start_s = opened(page, at)
        starts.append(start_s)
        page.goto("about:blank")
    found: dict[str, Any] = {"start_s": starts[0], "start_again_s": starts[1]}
    desk, _ = opened(page, f"{at}?desk={busy(400).packed()}")
    page.wait_for_timeout(200)
    while desk.evaluate("e => e.state().requests.filter((r) => r.status === 'running').length") < MANY:
        page.wait_for_timeout(50)
    first = desk.evaluate("e => e.state().drawing")
    page.wait_for_timeout(10_000)
    last = desk.evaluate("e => e.state().drawing")
    found["frames_per_s"] = (last["frames"] - first["frames"]) / 10
    found["draw_share"] = (last["ms"] - first["ms"]) / 10_000
    press = """e => new Promise((done) => { const was = e.state().paused, at = performance.now();
        e.querySelector('[data-name=pause]').click();
        const look = () => e.state().paused !== was ? done(performance.now() - at) : setTimeout(look, 1); look(); })"""
    found["control_ms"] = statistics.median(desk.evaluate(press) for _ in range(10))
    if soak_s:
        found["soak"] = soaked(page, f"{at}?desk={Recipe(rate=4.0, max_tokens=32).packed()}", soak_s)
    context.close()
    return found


def soaked(page: Page, address: str, seconds: float) -> dict[str, float]:
    desk, _ = opened(page, address)
    line = page.context.new_cdp_session(page)

    def look() -> dict[str, float]:
        line.send("HeapProfiler.collectGarbage")
        used = line.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        nodes = desk.evaluate("e => e.querySelectorAll('*').length")
        return {"heap_mb": used, "nodes": nodes, **desk.evaluate("e => ({frames: e.state().drawing.frames})")}

    page.wait_for_timeout(seconds * 100)
    first, began = look(), time.perf_counter()
    page.wait_for_timeout(seconds * 900)
    last = look()
    steps = desk.evaluate("e => e.state().series.kv_used_bytes.length")
    return {
        "seconds": seconds,
        "heap_grown_mb": last["heap_mb"] - first["heap_mb"],
        "nodes_grown": last["nodes"] - first["nodes"],
        "frames_per_s": (last["frames"] - first["frames"]) / (time.perf_counter() - began),
        "rows_kept": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="a folder that `handbook build --out` has filled")
    parser.add_argument("--local", action="store_true", help="on a kernel of this machine, too")
    parser.add_argument("--soak", type=float, default=0.0, metavar="S", help="go on for so many seconds")
    options = parser.parse_args()
    record: dict[str, Any] = {"cpu": cpu_name(), "load": os.getloadavg()[0], "without_a_page": without_a_page()}
    print(json.dumps(record["without_a_page"], indent=1), flush=True)
    path = chromium.find()
    if options.site and path is None:
        sys.exit("there is no Chromium: install one, or leave --site out")
    if options.site:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=chromium.flags())
            worlds = [("browser", served(options.site, "/"))] + (
                [("local", running(application(options.site, ROOT)))] if options.local else []
            )
            for name, world in worlds:
                with world as base:
                    record[name] = in_a_page(browser, base, options.soak)
                    print(name, json.dumps(record[name], indent=1), flush=True)
            browser.close()
    report(record, None)


if __name__ == "__main__":
    main()
