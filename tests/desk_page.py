"""The desk as a test sees it: what its element says of itself, and its controls."""

from __future__ import annotations

from typing import Any

from live_pages import STARTED_MS
from live_site import wait_for
from playwright.sync_api import FrameLocator, Locator

CHANGED_S = 90


class DeskPage:
    """One desk in a frame. Every wait has a limit and fails with what was waited for."""

    def __init__(self, frame: FrameLocator) -> None:
        self.frame = frame
        self.element = frame.locator("[data-hb-desk]").first
        self.element.wait_for(timeout=STARTED_MS)
        self.until(lambda s: s["recipe"] != "")

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.element.evaluate("e => e.state()")
        return found

    def until(self, condition: Any, seconds: float = CHANGED_S) -> dict[str, Any]:
        """The state as soon as ``condition`` holds of it."""
        seen: dict[str, Any] = {}

        def holds() -> bool:
            seen.clear()
            seen.update(self.state())
            return bool(condition(seen))

        wait_for(holds, seconds)
        return seen

    def control(self, name: str) -> Locator:
        return self.element.locator(f'[data-name="{name}"]')

    def side(self, name: str) -> dict[str, Any]:
        state = self.state()
        found: dict[str, Any] = state["sides"][name] if "sides" in state else state
        return found

    def outside(self) -> list[str]:
        """What is drawn or written beyond the frame's edges."""
        found: list[str] = self.element.evaluate(
            """e => [...e.querySelectorAll('*')].filter((x) => {
                 const b = x.getBoundingClientRect(), r = e.getBoundingClientRect();
                 if (!b.width || !b.height || x.closest('.wide, .u-over, .u-select, .u-cursor-x')) return false;
                 return b.right > r.right + 1 || b.left < r.left - 1;
               }).map((x) => `${x.tagName}.${x.className} ${x.textContent.slice(0, 40)}`)"""
        )
        return found
