"""Exports all notebooks as pages that run in the browser's own Python, self-hosted, into one folder.

Where no index, no CDN or no Chromium can be had, the export is left out and the reason is kept, for the
build's last line and for the reader who asks for the live level (``live.json``).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import marimo
from marimo._pyodide.pyodide_constraints import PYODIDE_VERSION

from visualizers.site import browser, browser_wheel
from visualizers.site.config import Indexes
from visualizers.site.errors import SiteError
from visualizers.site.files import place, write

PROBE_TIMEOUT_S = 5
EXPORT_TIMEOUT_S = 600
STATUS = "live.json"  # in the exported folder, read by the page's script
DIGEST = ".digest"
BUNDLE_FAILED = 3  # exit status of the child where the fault lies with the indexes, not with the project


@dataclass(frozen=True)
class ExportResult:
    """Whether the folder holds notebooks; if not, why. ``reused`` tells that nothing had changed."""

    enabled: bool
    reason: str = ""
    notebooks: tuple[str, ...] = ()
    bytes: int = 0  # what a first visit loads
    reused: bool = False


def notebooks(root: Path) -> list[Path]:
    """The notebooks of the project, by stem."""
    return sorted(p for p in (root / "notebooks").glob("*.py") if not p.name.startswith("_"))


def export(
    root: Path, out: Path, *, indexes: Indexes | None = None, say: Callable[[str], None] = print
) -> ExportResult:
    """Fills ``out`` with the notebooks' pages, their runtime and ``live.json``.

    ``out`` is replaced as a whole and only when something changed. Without network or browser it holds
    ``live.json`` alone. Raises :class:`SiteError` where a notebook or the package is at fault.
    """
    indexes = indexes or Indexes()
    found = notebooks(root)
    cache = root / ".cache" / "wasm"
    if not found:
        return _off(out, "the project has no notebooks")
    wheel = browser_wheel.build(root, cache / "wheel")
    digest = _digest(root, found, wheel, indexes)
    if (out / DIGEST).is_file() and (out / DIGEST).read_text() == digest:
        return _result(out, reused=True)
    chromium = browser.find()
    if chromium is None:
        return _off(out, "no Chromium was found, which resolves the browser's packages: install one and build again")
    requirements = browser_wheel.requirements(wheel)
    runtime = cache / f"runtime-{_runtime_key(requirements, indexes)}"
    if not runtime.is_dir():
        missing = unreachable(indexes)
        if missing:
            return _off(out, missing)
        say("live notebooks: resolving and compiling the browser's Python (once, about a minute)")
    staging = out.with_name(f".{out.name}-new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    order = {
        "notebooks": [str(path) for path in found],
        "wheel": str(wheel),
        "requirements": requirements,
        "runtime": str(runtime),
        "out": str(staging),
        "chromium": chromium,
        "pyodide_index_url": indexes.pyodide,
        "pypi_index_url": indexes.pypi,
    }
    try:
        loaded = _run(order)
        status = {
            "wasm": True,
            **loaded,
            "models": _place_models(root, staging),
            "notebooks": {path.stem: {"models": models_of(path)} for path in found},
            "edit": True,
        }
        write(staging / STATUS, json.dumps(status))
        write(staging / DIGEST, digest)
        _require_pages(staging, found)
        _clear(out)
        staging.rename(out)
    except _BundleError as error:
        return _off(out, str(error))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _forget_others(runtime)
    return _result(out)


def unreachable(indexes: Indexes) -> str:
    """The reason why the browser's Python cannot be fetched, empty where it can."""
    for url in indexes.probes(PYODIDE_VERSION):
        try:
            with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S):  # noqa: S310 - http or https, by the caller
                pass
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            return (
                f"{url} cannot be reached ({reason}): name mirrors in HANDBOOK_PYODIDE_INDEX_URL and "
                "HANDBOOK_PYPI_INDEX_URL, or build where the network is"
            )
    return ""


def _clear(out: Path) -> None:
    (out / DIGEST).unlink(missing_ok=True)  # first: an interrupted removal must not pass for an export
    shutil.rmtree(out, ignore_errors=True)


def _off(out: Path, reason: str) -> ExportResult:
    _clear(out)
    write(out / STATUS, json.dumps({"wasm": False, "reason": reason}))
    return ExportResult(False, reason)


def _result(out: Path, *, reused: bool = False) -> ExportResult:
    status = json.loads((out / STATUS).read_text())
    size = sum(size for _, size in status["files"])
    return ExportResult(True, "", tuple(status["notebooks"]), size, reused)


class _BundleError(Exception):
    """The indexes answered, yet the browser's Python could not be put together from them."""


def _run(order: Mapping[str, object]) -> dict[str, object]:
    """Runs the child, which finds ``uv`` beside this interpreter; returns what a page loads (``wasm_bundle.run``)."""
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", "")])}
    command = [sys.executable, "-m", "visualizers.site.wasm_bundle"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(order),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=EXPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise _BundleError(f"the export took more than {EXPORT_TIMEOUT_S} s: see whether the indexes answer") from None
    if done.returncode == BUNDLE_FAILED:
        raise _BundleError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise SiteError(f"the export of the notebooks failed: {done.stderr.strip()[-1500:]}")
    loaded: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def models_of(notebook: Path) -> list[str]:
    """The bundled models that a notebook fetches, read from its text."""
    return sorted(set(re.findall(r"""fetch_model\(["']([\w-]+)["']\)""", notebook.read_text(encoding="utf-8"))))


def _place_models(root: Path, out: Path) -> dict[str, list[tuple[str, int]]]:
    """The weights below ``models/``, for the notebooks that fetch them: (path, bytes) by the model's name."""
    placed: dict[str, list[tuple[str, int]]] = {}
    for name, files in browser_wheel.weights(root).items():
        folder = root / browser_wheel.MODELS / name
        placed[name] = []
        for file in files:
            path = f"models/{name}/{file.relative_to(folder).as_posix()}"
            place(file, out / path)
            placed[name].append((path, file.stat().st_size))
    return placed


def _require_pages(folder: Path, found: list[Path]) -> None:
    """marimo writes no page, and says nothing, where a tool that it wants is not there."""
    for path in found:
        page = folder / f"{path.stem}.html"
        if not page.is_file() or "<marimo-code" not in page.read_text(encoding="utf-8"):
            raise SiteError(f"the export wrote no page for {path}: run marimo export html-wasm on it to see why")


def _runtime_key(requirements: list[str], indexes: Indexes) -> str:
    """Changes whenever other packages would be resolved or compiled otherwise. A mirror's port does not count."""
    makers = [(Path(__file__).parent / name).read_bytes() for name in ("wasm_bundle.py", "wasm_compile.py")]
    facts = [marimo.__version__, PYODIDE_VERSION, *requirements, str(bool(indexes.pyodide)), str(bool(indexes.pypi))]
    return hashlib.sha256(b"\0".join([*(fact.encode() for fact in facts), *makers])).hexdigest()[:16]


def _digest(root: Path, found: list[Path], wheel: Path, indexes: Indexes) -> str:
    """Changes whenever the exported folder would."""
    parts = [_runtime_key(browser_wheel.requirements(wheel), indexes).encode(), wheel.read_bytes()]
    parts += [Path(__file__).with_name(name).read_bytes() for name in ("wasm.py", "front_end.py", "live_head.js")]
    for path in [*found, *(file for files in browser_wheel.weights(root).values() for file in files)]:
        parts += [path.name.encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _forget_others(runtime: Path) -> None:
    """Bundles of other versions, 50 MB each, that no export will use again."""
    for folder in runtime.parent.glob("runtime-*"):
        if folder != runtime:
            shutil.rmtree(folder, ignore_errors=True)
