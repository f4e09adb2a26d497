"""The code of a notebook edited in its place on the page, on a kernel of this machine and in the browser's Python."""

from __future__ import annotations

import pytest
from live_pages import CHANGED_MS, STARTED_MS, Troubles, local, page, published, run_live
from live_site import ROOT, live_of, wait_for
from playwright.sync_api import Page, expect

from visualizers.site.live import SESSION_TTL_S

pytestmark = pytest.mark.browser
__all__ = ["local", "page", "published"]  # fixtures


@pytest.mark.parametrize("where", ["local", "published"])
def test_code_is_changed_run_undone_and_left(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    given = request.getfixturevalue(where)
    address = given if where == "published" else given[0]
    troubles = Troubles(page, address)
    frame = run_live(page, address, "kv-cache-size", context=2048)
    status = page.locator(".hbl-status")
    page.get_by_role("button", name="Edit the code").click()
    expect(status).to_contain_text("Ctrl+Enter", timeout=STARTED_MS)
    assert len(page.context.pages) == 1  # in place
    expect(frame.get_by_text("2,048").first).to_be_attached(timeout=STARTED_MS)  # the figure's inputs, too
    editor = frame.locator(".cm-content", has_text="container").first
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("changed = 6 * 7\nmo.md(f'by the reader: {changed:.1f}')")
    page.keyboard.press("Control+Enter")
    expect(frame.get_by_text("by the reader: 42.0")).to_be_visible(timeout=CHANGED_MS)
    for hidden in ("chrome-sidebar", "shutdown-button", "chrome-footer", "dir-completion-input"):
        expect(frame.locator(f"[data-testid={hidden}]")).not_to_be_visible()
    page.get_by_role("button", name="Undo all my changes").click()
    expect(frame.locator(".cm-content", has_text="container").first).to_be_visible(timeout=STARTED_MS)
    expect(status).to_contain_text("Ctrl+Enter", timeout=STARTED_MS)
    expect(frame.get_by_text("by the reader")).to_have_count(0)
    page.get_by_role("button", name="Back to the notebook").click()
    expect(frame.locator("svg.marks")).to_be_visible(timeout=STARTED_MS)
    expect(frame.locator(".cm-content")).to_have_count(0)
    assert troubles == []


def test_what_is_edited_locally_touches_no_file_of_the_project_and_its_kernel_ends(
    page: Page, local: tuple[str, object]
) -> None:
    live = live_of(local[1])
    own = live._editor._sources["kv_cache_size"]
    frame = run_live(page, local[0], "kv-cache-size")
    page.get_by_role("button", name="Edit the code").click()
    frame.locator(".cm-content", has_text="container").first.click(timeout=STARTED_MS)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("mo.md('kept ' + 'text')")
    page.keyboard.press("Control+Enter")
    expect(frame.get_by_text("kept text", exact=True)).to_be_visible(timeout=CHANGED_MS)
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Close").click()
    wait_for(lambda: live.sessions() == 0, SESSION_TTL_S + 60)
    assert own.read_text() == (ROOT / "tests" / "data" / "notebooks" / "kv_cache_size.py").read_text()


def test_an_editor_whose_process_dies_is_told(page: Page, local: tuple[str, object]) -> None:
    live = live_of(local[1])
    run_live(page, local[0], "kv-cache-size")
    page.get_by_role("button", name="Edit the code").click()
    expect(page.locator(".hbl-status")).to_contain_text("Ctrl+Enter", timeout=STARTED_MS)
    (session,) = live._editor._managers["kv_cache_size"].sessions.values()
    session._kernel_manager.kernel_task.kill()
    expect(page.locator(".hbl-status")).to_contain_text("The kernel has ended", timeout=CHANGED_MS)
    page.get_by_role("button", name="Start again").click()
    expect(page.locator(".hbl-status")).to_contain_text("Ctrl+Enter", timeout=STARTED_MS)
