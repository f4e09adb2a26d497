"""The export of notebooks for the browser: the wheel, the bundle, and what it asks of whom."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from live_site import ROOT, Exported, exported, write_project
from small_book import write_book

from minillm import __version__
from visualizers.site import browser_wheel, wasm
from visualizers.site.build import Builder
from visualizers.site.cli import main
from visualizers.site.config import Indexes
from visualizers.site.errors import SiteError
from visualizers.site.wasm_bundle import for_browser, loaded_files
from visualizers.site.wasm_compile import slim

NOWHERE = Indexes(pyodide="http://127.0.0.1:9/pyodide/", pypi="http://127.0.0.1:9/simple/")
HEADER = '# /// script\n# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"{}]\n# ///\nx = 1\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return browser_wheel.build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_code_and_no_weights(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "minillm/core/engine.py" in names
    assert "visualizers/notebook.py" in names
    assert not [n for n in names if n.endswith(".safetensors") or n.startswith("visualizers/site/")]
    assert wheel.name == f"inference_handbook-{__version__}-py3-none-any.whl"


def test_the_wheel_says_what_is_in_it(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    record = next(n for n in archive.namelist() if n.endswith("RECORD"))
    lines = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(archive.read(record).decode()))}
    assert set(lines) == set(archive.namelist())
    for name, (digest, size) in lines.items():
        if name != record:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(data))), name


def test_the_same_code_is_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert browser_wheel.build(ROOT, tmp_path).read_bytes() == wheel.read_bytes()


def test_the_wheel_needs_nothing_that_the_browser_lacks(wheel: Path) -> None:
    names = {re.split(r"[<>=]", requirement)[0] for requirement in browser_wheel.requirements(wheel)}
    assert names == {"numpy", "jinja2", "altair"}


def test_a_project_that_does_not_build_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(SiteError, match="could not be built"):
        browser_wheel.build(tmp_path, tmp_path / "out")


def test_a_page_asks_for_no_marimo() -> None:
    kept = for_browser(HEADER.format(""), {"inference-handbook"})
    assert "marimo==" not in kept
    assert "show_tracebacks = true" in kept
    assert "inference-handbook==0.1.0" in kept
    assert kept.endswith("x = 1\n")


def test_a_requirement_outside_the_bundle_is_refused() -> None:
    with pytest.raises(ValueError, match=r"requires 'pandas>=2'.*pyproject\.toml"):
        for_browser(HEADER.format(', "pandas>=2"'), {"inference-handbook"})


def test_what_a_page_loads_is_the_closure_of_the_lock(tmp_path: Path) -> None:
    def package(name: str, *depends: str) -> dict[str, object]:
        file = tmp_path / "packages" / f"{name}.whl"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 7)
        return {"file_name": f"../packages/{name}.whl", "depends": list(depends)}

    (tmp_path / "pyodide").mkdir()
    for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip"):
        (tmp_path / "pyodide" / name).write_bytes(b"x" * 3)
    lock = {"packages": {"inference-handbook": package("own", "NumPy"), "numpy": package("np"), "black": package("b")}}
    files = dict(loaded_files(lock, tmp_path))
    assert files["packages/own.whl"] == files["packages/np.whl"] == 7
    assert files["pyodide/pyodide.asm.wasm"] == 3
    assert "packages/b.whl" not in files  # nothing that a page loads depends on it


def test_slim_drops_only_what_no_page_uses() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in (
            "jedi/__init__.py",
            "jedi/third_party/django-stubs/a.pyi",
            "jedi/third_party/typeshed/stdlib/b.pyi",
        ):
            archive.writestr(name, "")
    kept = zipfile.ZipFile(io.BytesIO(slim("jedi", buffer.getvalue()))).namelist()
    assert kept == ["jedi/__init__.py", "jedi/third_party/typeshed/stdlib/b.pyi"]
    assert slim("numpy", buffer.getvalue()) == buffer.getvalue()


def test_without_an_index_the_build_goes_on_and_says_why(tmp_path: Path) -> None:
    root = write_project(tmp_path)
    out = root / ".build" / "notebooks"
    result = wasm.export(root, out, indexes=NOWHERE, say=lambda _: None)
    assert not result.enabled
    assert "http://127.0.0.1:9/pyodide/pyodide.mjs cannot be reached" in result.reason
    assert "HANDBOOK_PYODIDE_INDEX_URL" in result.reason
    assert [p.name for p in out.iterdir()] == ["live.json"]
    assert json.loads((out / "live.json").read_text()) == {"wasm": False, "reason": result.reason}


def test_without_a_browser_the_build_goes_on_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm.browser, "find", lambda: None)
    root = write_project(tmp_path)
    result = wasm.export(root, root / "out", indexes=NOWHERE)
    assert not result.enabled
    assert "Chromium" in result.reason


def test_without_notebooks_there_is_nothing_to_export(tmp_path: Path) -> None:
    assert wasm.export(tmp_path, tmp_path / "out").reason == "the project has no notebooks"


def test_models_are_read_from_the_notebook(tmp_path: Path) -> None:
    notebook = tmp_path / "n.py"
    notebook.write_text("await notebook.fetch_model(\"tiny\")\nawait notebook.fetch_model('tiny-draft')\n")
    assert wasm.models_of(notebook) == ["tiny", "tiny-draft"]


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def test_the_export_is_whole(export: Exported) -> None:
    assert export.result.enabled, export.result.reason
    assert set(export.result.notebooks) == {"batching", "kv_cache_size", "live_run", "raises"}
    for stem in export.result.notebooks:
        assert "<marimo-code" in (export.folder / f"{stem}.html").read_text()
        assert (export.folder / f"{stem}.edit.html").is_file()
    status = json.loads((export.folder / "live.json").read_text())
    assert status["wasm"] is True
    assert status["notebooks"]["live_run"] == {"models": ["tiny"]}
    for path, size in [*status["files"], *status["models"]["tiny"]]:
        assert (export.folder / path).stat().st_size == size, path
    assert export.result.bytes == sum(size for _, size in status["files"])


def test_nothing_asks_an_index_for_our_names(export: Exported) -> None:
    """Packages called `minillm` and `visualizers` on the public index belong to strangers, and so might ours."""
    asked = [unquote(path).lower() for path in export.index.asked]
    assert any("/simple/marimo-base/" in path for path in asked)  # the log does see the export
    ours = re.compile(r"minillm|visualizers|inference[-_.]handbook")
    assert not [path for path in asked if ours.search(path)]


def test_the_runtime_is_compiled_and_ours_keeps_its_sources(export: Exported) -> None:
    lock = json.loads(next((export.folder / "lockfile").glob("*.json")).read_text())
    own = lock["packages"]["inference-handbook"]
    assert own["imports"] == ["minillm", "visualizers"]
    names = zipfile.ZipFile(export.folder / own["file_name"].removeprefix("../")).namelist()
    assert "minillm/core/engine.py" in names
    assert any(re.fullmatch(r"minillm/core/__pycache__/engine\.cpython-\d+\.pyc", name) for name in names)
    altair = zipfile.ZipFile(export.folder / lock["packages"]["altair"]["file_name"].removeprefix("../")).namelist()
    assert "altair/__init__.pyc" in altair
    assert "altair/__init__.py" not in altair
    for package in lock["packages"].values():
        data = (export.folder / package["file_name"].removeprefix("../")).read_bytes()
        assert hashlib.sha256(data).hexdigest() == package["sha256"], package["name"]


def test_no_address_of_a_page_leads_outside(export: Exported) -> None:
    page = (export.folder / "kv_cache_size.html").read_text()
    head = page[: page.index("<marimo-code")]
    assert not re.findall(r'(?:src|href)="(?:https?:)?//[^"]+"', head)
    assert 'data-pyodide-index-url="./pyodide/"' in head


def test_no_foreign_marks_are_left(export: Exported) -> None:
    files = {p.name for p in export.folder.iterdir()}
    assert not {"CLAUDE.md", "AGENTS.md", "manifest.json", "logo.png"} & files
    assert not re.search(r"apple-touch-icon|manifest\.json", (export.folder / "live_run.html").read_text()[:6000])


def test_an_unchanged_project_is_not_exported_again(export: Exported) -> None:
    before = (export.folder / "live_run.html").stat().st_mtime_ns
    again = wasm.export(export.root, export.folder, indexes=export.index.indexes)
    assert again.reused
    assert (export.folder / "live_run.html").stat().st_mtime_ns == before


def test_a_build_says_at_its_end_that_no_notebook_will_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Built:
        documents = ("index.md",)

        def build(self, out: Path, notebooks: Path | None) -> Built:
            return self

    root = write_book(tmp_path)
    monkeypatch.setattr(Builder, "of", lambda *_, **__: Built())
    monkeypatch.setattr(wasm, "export", lambda *_, **__: wasm.ExportResult(False, "no index answers"))
    for option, reason in (([], "no index answers"), (["--no-notebooks"], "left out by --no-notebooks")):
        assert main(["--root", str(root), "build", "--out", str(tmp_path / "out"), *option]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"notebooks: none will run in the browser: {reason}"
