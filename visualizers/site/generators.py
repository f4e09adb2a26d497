"""Runs a Markdown generator on ``.build/docs``: mkdocs, which the project ships with, or zensical.

Both read the same ``mkdocs.yml``. Here only folders and the site's address are overridden.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from visualizers.site.errors import SiteError


def run(generator: str, root: Path, docs: Path, out: Path, site_url: str, *, dirty: bool = False) -> None:
    """Renders ``docs`` into ``out``. With ``dirty`` (mkdocs) only pages whose file is newer than its HTML."""
    if generator == "mkdocs":
        _mkdocs(root, docs, out, site_url, dirty=dirty)
    elif generator == "zensical":
        _zensical(root, docs, out, site_url)
    else:
        raise SiteError(f"unknown generator {generator!r}: choose mkdocs or zensical")


def _mkdocs(root: Path, docs: Path, out: Path, site_url: str, *, dirty: bool) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    with _warnings("mkdocs") as warnings:
        try:
            config = load_config(str(root / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(out), site_url=site_url)
            config.plugins.on_startup(command="build", dirty=dirty)
            build(config, dirty=dirty)
            config.plugins.on_shutdown()
        except MkDocsException as error:
            raise SiteError(f"mkdocs: {error}") from error
    if warnings:
        raise SiteError("mkdocs: " + "\n".join(warnings))


@contextmanager
def _warnings(name: str) -> Iterator[list[str]]:
    """Collects what a logger warns of, and keeps it from the terminal."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if not message.startswith("A 'dirty' build"):  # we know, and mend what it leaves out
                found.append(message)

    logger = logging.getLogger(name)
    handler = Collect(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _zensical(root: Path, docs: Path, out: Path, site_url: str) -> None:
    """Zensical has no options for its folders, and takes them from below its configuration file."""
    with tempfile.TemporaryDirectory(prefix="zensical-") as folder:
        work = Path(folder)
        shutil.copytree(docs, work / "docs")
        config = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
        config |= {"docs_dir": "docs", "site_dir": "site", "site_url": site_url}
        (work / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
            cwd=work,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not (work / "site" / "index.html").is_file():
            raise SiteError(f"zensical: {(done.stderr or done.stdout).strip()}")
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(work / "site", out)
