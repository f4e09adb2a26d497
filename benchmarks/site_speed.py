"""How a built site behaves in a real Chromium: bytes, paint, layout shift, touch to paint, heap, and live notebooks.

    handbook build --out OUT && python benchmarks/site_speed.py OUT [--mount /x/]

The folder is served as a plain host would: gzip, and nothing else, at the root or below ``--mount``.

- ``kb``: what each page transfers before any interaction (headers and bodies, compressed).
- ``lcp_s``: largest contentful paint on a slow link (9 Mbit/s, 170 ms, processor slowed 4 times), 390 px, cold cache.
- ``shift``: cumulative layout shift while the page is scrolled to its end, the larger of 390 and 1280 px.
- ``usable_ms``: from a figure's coming into view to its being movable; ``touch_ms``: from a key on a slider to the
  frame after the figure's new numbers are drawn, the median of several.
- ``heap_mb``: growth of the heap over 20 times forward and back.
- ``notebook_cold_s`` and ``notebook_warm_s``: from "Run live" to a notebook's first output in the browser's Python;
  ``notebook_hinted_s``: cold, where the pointer had rested on the button for 2 s, since that starts it unseen.
- ``troubles``: console errors, failed answers and requests to third parties, on every page, both themes and widths.

Where it flatters: the server is on the same machine (the link is throttled for ``lcp_s`` alone). The last line of
stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, sync_playwright
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from visualizers.site import browser as chromium

SLOW = {"offline": False, "latency": 170, "downloadThroughput": 9e6 / 8, "uploadThroughput": 9e6 / 8}
HINT_S = 2
OBSERVE = """globalThis.lcp = 0; globalThis.shift = 0;
new PerformanceObserver((l) => l.getEntries().forEach((e) => (lcp = e.startTime)))
    .observe({type: 'largest-contentful-paint', buffered: true});
new PerformanceObserver((l) => l.getEntries().forEach((e) => e.hadRecentInput || (shift += e.value)))
    .observe({type: 'layout-shift', buffered: true});"""


def served(folder: Path, mount: str) -> AbstractContextManager[str]:
    """The address of the site's home page, while a plain host serves it."""
    files = StaticFiles(directory=folder, html=True)
    app = Starlette(routes=[Mount(mount.rstrip("/"), app=files)], middleware=[Middleware(GZipMiddleware)])
    return running(app, mount)


@contextmanager
def running(app: Any, mount: str = "/") -> Iterator[str]:
    """The address at which ``app`` answers on loopback."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}{mount}"
    server.should_exit = True
    thread.join(10)


def pages(folder: Path) -> list[str]:
    """Every page's address below the home page."""
    found = (path.parent.relative_to(folder).as_posix() for path in folder.rglob("index.html"))
    return sorted("" if at == "." else f"{at}/" for at in found if not at.startswith(("notebooks", "assets")))


def session(page: Page) -> CDPSession:
    """The page's own line to the browser, its network watched."""
    found = page.context.new_cdp_session(page)
    found.send("Network.enable")
    return found


def transferred(context: BrowserContext, address: str) -> float:
    """Kilobytes until the network is quiet, nothing touched."""
    page, total = context.new_page(), 0
    line = session(page)

    def add(event: Any) -> None:
        nonlocal total
        total += event["encodedDataLength"]

    line.on("Network.loadingFinished", add)
    page.goto(address, wait_until="networkidle")
    page.close()
    return total / 1000


def painted(context: BrowserContext, address: str) -> float:
    """Seconds to the largest contentful paint on the slow link."""
    page = context.new_page()
    line = session(page)
    line.send("Network.emulateNetworkConditions", SLOW)
    line.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    page.add_init_script(OBSERVE)
    page.goto(address, wait_until="networkidle")
    lcp = page.evaluate("lcp") / 1000
    page.close()
    return float(lcp)


def scrolled(page: Page) -> None:
    """To the end of the page, a screen at a time."""
    for _ in range(60):
        page.mouse.wheel(0, 700)
        page.wait_for_timeout(60)
        if page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2"):
            break
    page.wait_for_load_state("networkidle")


def walked(browser: Browser, base: str, at: str, width: int, scheme: Any) -> tuple[float, list[str]]:
    """The page scrolled through: its layout shift, and what went wrong on it."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, troubles = context.new_page(), []
    inside = (base, "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(inside) else troubles.append(f"third party {r.url}"))
    page.on("response", lambda r: troubles.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    page.on("requestfailed", lambda r: troubles.append(f"failed {r.url}"))
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.add_init_script(OBSERVE)
    page.goto(base + at, wait_until="networkidle")
    scrolled(page)
    shift = page.evaluate("shift")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        troubles.append(f"runs off the screen at {width} px")
    context.close()
    return float(shift), [f"{at or 'home'} {width} {scheme}: {trouble}" for trouble in troubles]


def touched(browser: Browser, base: str, at: str) -> tuple[float, float]:
    """Milliseconds until the page's first figure is usable, and from a key to the painted change."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(base + at, wait_until="networkidle")
    usable = page.evaluate(
        """() => new Promise((done) => {
            const figure = document.querySelector("hb-figure");
            if (figure.hasAttribute("data-ready")) return done(0);
            const start = performance.now();
            new MutationObserver(() => figure.hasAttribute("data-ready") && done(performance.now() - start))
                .observe(figure, {attributes: true});
            figure.scrollIntoView({block: "center"});
        })"""
    )
    page.locator("hb-figure[data-ready]").first.wait_for()
    times = [
        page.evaluate(
            """(key) => new Promise((done) => {
                const figure = document.querySelector("hb-figure");
                const slider = figure.querySelector("input[type=range]");
                const start = performance.now();
                const numbers = figure.querySelector("[data-sentence], .hbf-values");
                new MutationObserver((_, seen) => {
                    seen.disconnect();
                    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
                }).observe(numbers, {subtree: true, childList: true, characterData: true});
                slider.value = Number(slider.value) + (key ? 1 : -1) * (Number(slider.step) || 1);
                slider.dispatchEvent(new Event("input", {bubbles: true}));
            })""",
            turn % 2 == 0,
        )
        for turn in range(8)
    ]
    context.close()
    return float(usable), statistics.median(times[1:])


def kept(browser: Browser, base: str, one: str, two: str) -> float:
    """Megabytes of heap that 20 times forward and back leave behind."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    line = session(page)

    def heap() -> float:
        for _ in range(3):
            line.send("HeapProfiler.collectGarbage")
        return float(line.send("Runtime.getHeapUsage")["usedSize"]) / 1e6

    page.goto(base + one, wait_until="networkidle")
    page.goto(base + two, wait_until="networkidle")
    page.go_back(wait_until="networkidle")
    before = heap()
    for _ in range(20):
        page.go_forward(wait_until="networkidle")
        page.go_back(wait_until="networkidle")
    grown = heap() - before
    context.close()
    return grown


def notebook(browser: Browser, base: str, at: str, hint_s: float = 0) -> tuple[float, float]:
    """Seconds from "Run live" to the notebook's first output: nothing cached, then everything.

    The pointer rests on the button for ``hint_s`` before.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    times = []
    for _ in range(2):
        page = context.new_page()
        page.goto(base + at, wait_until="networkidle")
        figure = page.locator("hb-figure").first
        figure.scroll_into_view_if_needed()
        page.locator("hb-figure[data-ready]").first.wait_for()
        if hint_s:
            figure.locator("[data-run]").first.hover()
            page.wait_for_timeout(1000 * hint_s)
        start = time.perf_counter()
        figure.locator("[data-run]").first.click()
        frame = figure.frame_locator("iframe")
        frame.locator(".output-area :is(svg.marks, .markdown, canvas)").first.wait_for(timeout=240_000)
        figure.locator("iframe[data-ready]").wait_for(state="attached", timeout=240_000)
        times.append(time.perf_counter() - start)
        page.close()
    context.close()
    return times[0], times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="a folder that `handbook build --out` has filled")
    parser.add_argument("--mount", default="/", help="the path it is served below (default /)")
    options = parser.parse_args()
    path = chromium.find()
    if path is None or not (options.site / "index.html").is_file():
        sys.exit(f"{options.site} holds no built site, or there is no Chromium: handbook build --out {options.site}")
    record: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "pages": {}, "troubles": []}
    with served(options.site, options.mount) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.flags())
        print(f"{'page':44} {'kb':>6} {'lcp_s':>6} {'shift':>7}")
        found = pages(options.site)
        for at in found:
            phone = {"width": 390, "height": 844}
            kb, lcp = (measure(browser.new_context(viewport=phone), base + at) for measure in (transferred, painted))
            walks = [walked(browser, base, at, w, s) for w in (390, 1280) for s in ("light", "dark")]
            shift = max(shift for shift, _ in walks)
            record["pages"][at] = {"kb": kb, "lcp_s": lcp, "shift": shift}
            record["troubles"] += [trouble for _, troubles in walks for trouble in troubles]
            print(f"{at or 'home':44} {kb:6.0f} {lcp:6.2f} {shift:7.4f}", flush=True)
        chapters = [at for at in found if 'name="' in (options.site / at / "index.html").read_text() and at]
        with_figure = next(at for at in chapters if "paged" in at)
        record["usable_ms"], record["touch_ms"] = touched(browser, base, with_figure)
        record["heap_mb"] = kept(browser, base, with_figure, next(at for at in chapters if at != with_figure))
        if (options.site / "notebooks").is_dir():
            record["notebook_cold_s"], record["notebook_warm_s"] = notebook(browser, base, with_figure)
            record["notebook_hinted_s"], _ = notebook(browser, base, with_figure, HINT_S)
        browser.close()
    print("\n".join(record["troubles"]) or "no trouble on any page")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
