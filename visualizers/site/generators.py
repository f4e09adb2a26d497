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
from typing import Any, Protocol

import yaml

from visualizers.site.errors import SiteError

Nav = list[dict[str, Any]]


class Generator(Protocol):
    """Renders a folder of Markdown into a folder of HTML."""

    name: str

    def run(self, root: Path, docs: Path, out: Path, site_url: str, nav: Nav, *, partial: bool = False) -> None:
        """Renders ``docs`` into ``out`` by ``root``'s ``mkdocs.yml``.

        ``nav`` is that of the configuration with the label of every page. With ``partial`` a generator may
        leave out pages whose HTML is newer than their Markdown.
        """
        ...


def get(name: str) -> Generator:
    """A generator by its name. Raises :class:`SiteError` for an unknown one."""
    if name == "mkdocs":
        return Mkdocs()
    if name == "zensical":
        return Zensical()
    raise SiteError(f"unknown generator {name!r}: choose mkdocs or zensical")


class Mkdocs:
    """What the project ships with. It keeps the theme's compiled templates, two thirds of a page's time."""

    name = "mkdocs"

    def __init__(self) -> None:
        self._environment: Any = None

    def run(self, root: Path, docs: Path, out: Path, site_url: str, nav: Nav, *, partial: bool = False) -> None:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException

        with _warnings("mkdocs") as warnings:
            try:
                config = load_config(
                    str(root / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(out), site_url=site_url, nav=nav
                )
                if self._environment is None:
                    self._environment = config.theme.get_env()
                    templates = self._environment.list_templates()
                    # mkdocs asks for the fourteen thousand icons of the theme in every build.
                    self._environment.list_templates = lambda extensions=None, filter_func=None: list(
                        filter(filter_func, templates)
                    )
                config.theme.get_env = lambda: self._environment
                config.plugins.on_startup(command="build", dirty=partial)
                build(config, dirty=partial)
                config.plugins.on_shutdown()
            except MkDocsException as error:
                raise SiteError("mkdocs: " + "\n".join([*warnings, str(error)])) from error
            except RecursionError as error:
                raise SiteError("mkdocs: a page nests lists or quotes too deeply") from error
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


class Zensical:
    """The successor of the theme's authors, which must give the same site."""

    name = "zensical"

    def run(self, root: Path, docs: Path, out: Path, site_url: str, nav: Nav, *, partial: bool = False) -> None:
        # It has no options for its folders, and takes them from below its configuration file.
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
