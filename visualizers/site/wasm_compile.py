"""Compiles Python wheels to the bytecode of the browser's Python, in a browser, so that a page imports faster.

Pyodide compiles every module that it imports, at each visit: for marimo, Altair and NumPy that is most of
the time from a click to the first output. Here it is done once, at build, by the very interpreter that will
load the result, since bytecode belongs to one version of Python.
"""

from __future__ import annotations

import base64
import fnmatch
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import BrowserType, Page, Route

ORIGIN = "http://bundle.invalid/"  # answered from disk by the route below, never by a network

# Type stubs for completing third-party code: half of all files that a page would unpack.
UNUSED = {"jedi": ("jedi/third_party/django-stubs/*", "jedi/third_party/typeshed/third_party/*")}

_PYTHON = """
import importlib.util, io, marshal, struct, sys, zipfile
from pyodide.ffi import to_js

PYTHON = f"/lib/python{sys.version_info.major}.{sys.version_info.minor}"

def bytecode(source, path):
    # Flag 1 without the second bit: never compared with the source again, so its hash may be zero.
    code = compile(source, path, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + bytes(8) + marshal.dumps(code)

def translate(data, standard_library, with_source):
    prefix = PYTHON.replace(".", "") + ".zip/" if standard_library else PYTHON + "/site-packages/"
    source, out = zipfile.ZipFile(io.BytesIO(data.to_bytes())), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            if not name.endswith(".py"):
                continue
            try:
                compiled = bytecode(source.read(name), prefix + name)
            except SyntaxError:  # templates and samples that only look like modules
                continue
            folder, _, module = name.rpartition("/")
            beside = f"{folder}/__pycache__/{module[:-3]}.{sys.implementation.cache_tag}.pyc"
            target.writestr(zipfile.ZipInfo(beside if with_source else name + "c"), compiled)
    return to_js(out.getvalue())
"""

_SCRIPT = """async ({origin, lock, python, jobs}) => {
    const {loadPyodide} = await import(origin + "pyodide/pyodide.mjs");
    const pyodide = await loadPyodide({indexURL: origin + "pyodide/", lockFileContents: lock});
    pyodide.runPython(python);
    const translate = pyodide.globals.get("translate");
    const results = [];
    for (const {url, standardLibrary, withSource} of jobs) {
        const bytes = new Uint8Array(await (await fetch(origin + url)).arrayBuffer());
        results.push(base64(translate(bytes, standardLibrary, withSource)));
    }
    return results;

    function base64(bytes) {
        let text = "";
        for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
        return btoa(text);
    }
}"""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # no clock in an archive, so that equal code is an equal file
_TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}


@dataclass(frozen=True)
class Job:
    """One wheel, or the archive of the standard library. Sources stay beside the bytecode when asked."""

    archive: bytes
    standard_library: bool = False
    with_source: bool = False


def slim(distribution: str, archive: bytes) -> bytes:
    """The wheel without the files of ``UNUSED``."""
    patterns = UNUSED.get(distribution, ())
    if not patterns:
        return archive
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if not any(fnmatch.fnmatchcase(info.filename, pattern) for pattern in patterns):
                target.writestr(info, source.read(info))
    return out.getvalue()


async def compile_archives(
    jobs: Sequence[Job], runtime: Path, lock_info: Mapping[str, str], chromium: BrowserType
) -> list[bytes]:
    """The archives of ``jobs`` compiled, in their order. ``runtime`` holds Pyodide's own four files."""

    async def answer(route: Route) -> None:
        name = route.request.url.removeprefix(ORIGIN)
        if name.startswith("job/"):
            await route.fulfill(body=jobs[int(name.removeprefix("job/"))].archive)
        elif name.startswith("pyodide/"):
            file = runtime / Path(name).name
            kind = _TYPES.get(file.suffix, "application/octet-stream")
            await route.fulfill(body=file.read_bytes(), content_type=kind)
        else:
            await route.fulfill(body="<!doctype html><title>Compile</title>", content_type="text/html")

    browser = await chromium.launch()
    try:
        page: Page = await browser.new_page()
        await page.route("**/*", answer)
        await page.goto(ORIGIN)
        described = [
            {"url": f"job/{i}", "standardLibrary": job.standard_library, "withSource": job.with_source}
            for i, job in enumerate(jobs)
        ]
        lock = {"info": dict(lock_info), "packages": {}}
        results = await page.evaluate(_SCRIPT, {"origin": ORIGIN, "lock": lock, "python": _PYTHON, "jobs": described})
    finally:
        await browser.close()
    return [_with_bytecode(job, base64.b64decode(result)) for job, result in zip(jobs, results, strict=True)]


def _with_bytecode(job: Job, compiled: bytes) -> bytes:
    """The archive with the bytecode beside or in place of its sources. Packed here, where it is quick."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(job.archive)) as source,
        zipfile.ZipFile(io.BytesIO(compiled)) as made,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target,
    ):
        bytecode = {name: made.read(name) for name in made.namelist()}
        for name in source.namelist():
            if job.with_source or f"{name}c" not in bytecode:
                target.writestr(zipfile.ZipInfo(name, _EPOCH), source.read(name), zipfile.ZIP_DEFLATED)
        for name, code in bytecode.items():
            target.writestr(zipfile.ZipInfo(name, _EPOCH), code, zipfile.ZIP_DEFLATED)
    return out.getvalue()
