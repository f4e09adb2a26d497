"""The child process of ``wasm``: bundles the browser's Python once, then writes a page for each notebook.

    python -m visualizers.site.wasm_bundle < order.json

A process of its own because marimo starts Playwright's browser with no way to name another one: here the
launch is patched, for nobody else. marimo's exporter is called rather than its command, which would resolve
the same packages anew for every notebook.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marimo._ast.app import InternalApp
from marimo._ast.load import load_app
from marimo._config.config import DEFAULT_CONFIG
from marimo._environments import script_metadata
from marimo._export.exporter import Exporter
from marimo._export.offline import bundle_wasm_runtime
from marimo._export.requests import WASMExportRequest
from marimo._schemas.export_options import WASMExportOptions, WASMMode, WASMRuntimeConfig
from playwright.async_api import BrowserType, async_playwright

from visualizers.site import browser, front_end
from visualizers.site.browser_wheel import DISTRIBUTION, IMPORTS
from visualizers.site.wasm import BUNDLE_FAILED
from visualizers.site.wasm_compile import Job, compile_archives, slim

RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
# What marimo's page asks Pyodide for before it looks at the notebook, and while it does.
ALWAYS = ("micropip", "msgspec", "marimo-base", "markdown", "pymdown-extensions", "narwhals", "packaging")
WITH_NOTEBOOK = ("docutils", "pygments", "jedi", "pyodide-http", DISTRIBUTION)
# marimo's own marks, an instruction file for coding agents, and pictures for a lost server.
UNWANTED = ("CLAUDE.md", "*.png", "manifest.json", "site.webmanifest", "index.html")

# The name is told once the lock is held, or the page would get it first.
_HOLD = """
{const hbLock = `hb-python-${crypto.randomUUID?.()}`;
self.navigator.locks?.request(hbLock, () => (self.postMessage({hbLock}), new Promise(() => {})));}
"""


@dataclass(frozen=True)
class Order:
    """What to make. All paths are absolute; ``runtime`` outlives the process."""

    notebooks: list[str]
    wheel: str
    requirements: list[str]
    runtime: str  # folder of the bundled runtime: made when it is not there
    out: str  # an existing, empty folder
    chromium: str
    pyodide_index_url: str | None
    pypi_index_url: str | None


def _use(chromium: str) -> None:
    """Every launch in this process starts ``chromium``."""
    original = BrowserType.launch

    @functools.wraps(original)
    async def launch(self: BrowserType, **options: Any) -> Any:
        return await original(self, **{**options, "executable_path": chromium, "args": browser.flags()})

    BrowserType.launch = launch  # type: ignore[method-assign]


def _header(requirements: Sequence[str]) -> str:
    dependencies = "".join(f"#     {json.dumps(value)},\n" for value in requirements)
    return f"# /// script\n# dependencies = [\n{dependencies}# ]\n# ///\n"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_of(requirement: str) -> str:
    return _canonical(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0])


async def make_runtime(order: Order) -> None:
    """Pyodide and all packages that our wheel needs, resolved by marimo, then compiled: written whole or not at all."""
    runtime = Path(order.runtime)
    if runtime.is_dir():
        return
    staging = runtime.with_name(f"{runtime.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    sources = WASMRuntimeConfig(pyodide_index_url=order.pyodide_index_url, pypi_index_url=order.pypi_index_url)
    _, made = await bundle_wasm_runtime(_header(order.requirements), staging, sources=sources)
    lock_file = staging / str(made.pyodide_lockfile_url)
    lock = json.loads(lock_file.read_text())
    shutil.rmtree(lock_file.parent)
    packages = list(lock["packages"].values())
    paths = [staging / "packages" / package["file_name"].removeprefix("../packages/") for package in packages]
    library = staging / "pyodide" / "python_stdlib.zip"
    jobs = [Job(slim(_canonical(p["name"]), path.read_bytes())) for p, path in zip(packages, paths, strict=True)]
    jobs.append(Job(library.read_bytes(), standard_library=True))
    async with async_playwright() as playwright:
        *wheels, compiled = await compile_archives(jobs, staging / "pyodide", lock["info"], playwright.chromium)
    library.write_bytes(compiled)
    shutil.rmtree(staging / "packages")
    for package, path, data in zip(packages, paths, wheels, strict=True):
        package["file_name"], package["sha256"] = _place(staging / "packages", path.name, data)
    (staging / "lock.json").write_text(json.dumps(lock, sort_keys=True))
    staging.rename(runtime)


def _place(folder: Path, name: str, data: bytes) -> tuple[str, str]:
    """Writes a wheel under its digest; returns its address as the lock file names it, and the digest."""
    digest = hashlib.sha256(data).hexdigest()
    target = folder / digest[:16] / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return f"../packages/{digest[:16]}/{name}", digest


async def add_own_wheel(order: Order, lock: dict[str, Any], out: Path) -> None:
    """Our package as one more entry of the lock file, found by its imports: nothing asks an index for it."""
    wheel = Path(order.wheel)
    job = Job(wheel.read_bytes(), with_source=True)  # the sources are what a reader came to see
    async with async_playwright() as playwright:
        (data,) = await compile_archives([job], out / "pyodide", lock["info"], playwright.chromium)
    address, digest = _place(out / "packages", wheel.name, data)
    lock["packages"][DISTRIBUTION] = {
        "name": DISTRIBUTION,
        "version": wheel.name.split("-")[1],
        "file_name": address,
        "sha256": digest,
        "install_dir": "site",
        "package_type": "package",
        "imports": list(IMPORTS),
        "depends": [_name_of(requirement) for requirement in order.requirements],
        "unvendored_tests": False,
    }


def loaded_files(lock: dict[str, Any], out: Path) -> list[tuple[str, int]]:
    """What a page loads before its first cell runs: (path below ``out``, bytes)."""
    packages = {_canonical(name): package for name, package in lock["packages"].items()}
    pending, wanted = [*ALWAYS, *WITH_NOTEBOOK], dict[str, None]()
    while pending:
        name = _canonical(pending.pop())
        if name not in wanted and name in packages:
            wanted[name] = None
            pending += packages[name]["depends"]
    paths = [f"pyodide/{name}" for name in RUNTIME_FILES]
    paths += sorted(packages[name]["file_name"].removeprefix("../") for name in wanted)
    return [(path, (out / path).stat().st_size) for path in paths]


def for_browser(code: str, available: Collection[str]) -> str:
    """The notebook with the script metadata that a page wants.

    Its requirements less marimo, which the page has: what is not loaded, a page asks an index for. Raises
    ``ValueError`` for a requirement that the bundle does not hold, for the same reason.
    """
    project = script_metadata.loads(code)
    if project is None:
        raise ValueError(
            f"has no script metadata that requires {DISTRIBUTION}: copy the first lines of another notebook"
        )
    kept = []
    for requirement in map(str, project.get("dependencies", [])):
        name = _name_of(requirement)
        if name == "marimo":
            continue
        if name not in available:
            raise ValueError(f"requires {requirement!r}, which {DISTRIBUTION} does not: add it to pyproject.toml there")
        kept.append(requirement)
    # A notebook that raises says what and where; without this a page shows that "an internal error occurred".
    tool = {**project.get("tool", {}), "marimo": {"runtime": {"show_tracebacks": True}}}
    return script_metadata.replace_block(code, script_metadata.dumps({**project, "dependencies": kept, "tool": tool}))


def page(notebook: Path, mode: WASMMode, runtime: WASMRuntimeConfig, available: Collection[str]) -> str:
    """The HTML of one notebook, independent of the builder's own marimo settings."""
    loaded = load_app(str(notebook))
    if loaded is None:
        raise ValueError(f"{notebook} holds no marimo notebook")
    app = InternalApp(loaded)
    try:
        code = for_browser(app.to_py(), available)
    except ValueError as error:
        raise ValueError(f"{notebook} {error}") from error
    display = {**DEFAULT_CONFIG["display"], "theme": "system"}
    html, _ = Exporter().export_as_wasm(
        WASMExportRequest(
            filename=notebook.name,
            app_config=app.config,
            display_config=display,  # type: ignore[arg-type]
            code=code,
            options=WASMExportOptions(mode=mode, show_code=False, runtime=runtime),
        )
    )
    # The editor runs all cells when it opens, as a notebook that is only read does; no option says so.
    html = _without_marks(html).replace('"auto_instantiate": false', '"auto_instantiate": true')
    return html.replace("<head>", f"<head>{front_end.head()}", 1)


def _without_marks(html: str) -> str:
    """No link to the files of ``UNWANTED``."""
    html = re.sub(r"<!-- Preload is necessary because.*?-->\s*", "", html, flags=re.DOTALL)
    html = re.sub(r'<link rel="(?:apple-touch-icon|manifest)"[^>]*>\s*', "", html)
    return re.sub(r'<link rel="preload"[^>]*as="image"[^>]*>\s*', "", html)


def hold_locks(out: Path) -> None:
    """Each worker that runs Python holds a lock and tells its name: the browser lets go of it when the worker ends."""
    for worker in out.glob("assets/worker-*.js"):
        with worker.open("a", encoding="utf-8") as file:
            file.write(_HOLD)


async def run(order: Order) -> dict[str, object]:
    """Fills ``order.out`` and returns what a page of it loads: ``files`` of Python, ``front`` end."""
    out = Path(order.out)
    _use(order.chromium)
    try:
        await make_runtime(order)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}", file=sys.stderr)
        raise SystemExit(BUNDLE_FAILED) from error
    shutil.copytree(order.runtime, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock.json"))
    lock = json.loads((Path(order.runtime) / "lock.json").read_text())
    await add_own_wheel(order, lock, out)
    Exporter().export_assets(out)
    front = [name for name in front_end.files() if (out / name).is_file()]
    hold_locks(out)
    for pattern in UNWANTED:
        for file in out.glob(pattern):
            file.unlink()
    text = json.dumps(lock, sort_keys=True)
    name = f"lockfile/{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    (out / "lockfile").mkdir()
    (out / name).write_text(text)
    config = WASMRuntimeConfig(pyodide_index_url="./pyodide/", pyodide_lockfile_url=f"./{name}")
    available = {_canonical(name) for name in lock["packages"]}
    for notebook in map(Path, order.notebooks):
        (out / f"{notebook.stem}.html").write_text(page(notebook, "run", config, available), encoding="utf-8")
        (out / f"{notebook.stem}.edit.html").write_text(page(notebook, "edit", config, available), encoding="utf-8")
    return {"files": loaded_files(lock, out), "front": front}


if __name__ == "__main__":
    order = Order(**json.load(sys.stdin))
    print(json.dumps(asyncio.run(run(order))))
