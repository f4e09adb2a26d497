"""Finds the Chromium that draws pages in tests and embeds notebook outputs, and brings one when asked.

    python -m visualizers.site.browser [--install]

prints its path. Order: a Chromium on PATH, Playwright's own, the system's package when root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Without these, Chromium calls home at every start, and it needs no sandbox as root in a container.
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def flags() -> list[str]:
    """Command-line flags for a quiet headless Chromium."""
    return [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)


def find() -> str | None:
    """Path of a Chromium, or None."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install() -> str | None:
    """Bring a Chromium: Playwright's, else the system's package. None when neither can be had."""
    print("Fetching a Chromium for the tests", flush=True)
    fetched = subprocess.run(
        [sys.executable, "-m", "playwright", "install", "chromium"],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode and os.geteuid() == 0 and shutil.which("apt-get"):
        print("  Playwright's own is out of reach; asking the system's package manager", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    return find()


def main() -> int:
    path = find() or (install() if "--install" in sys.argv[1:] else None)
    if path is None:
        print(
            "No Chromium found: install one (Debian: apt-get install chromium, "
            "macOS: brew install --cask chromium), or run: python -m playwright install chromium",
            file=sys.stderr,
        )
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
