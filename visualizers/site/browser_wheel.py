"""Our package as a wheel for the browser: built by the build backend, then without what a page never imports.

Weights are left out, since a page fetches only those of the model it runs (``weights``), and so is the
code that builds the site.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from visualizers.site.errors import SiteError

DISTRIBUTION = "inference-handbook"
IMPORTS = ("minillm", "visualizers")
MODELS = "minillm/assets/models/"  # the wheel's folder with one folder a bundled model
LEFT_OUT = (MODELS, "visualizers/site/")
EPOCH = (1980, 1, 1, 0, 0, 0)  # no clock in the archive, so that equal code is an equal file


def build(root: Path, folder: Path) -> Path:
    """Writes the wheel of the project at ``root`` into ``folder`` and returns its path."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise SiteError(f"the wheel of {root} could not be built: {(done.stderr or done.stdout).strip()[-600:]}")
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / wheels[0].name
        target.write_bytes(_slimmed(wheels[0]))
    return target


def _slimmed(wheel: Path) -> bytes:
    """The archive without ``LEFT_OUT``, its record made anew, the same bytes for the same contents."""
    with zipfile.ZipFile(wheel) as source:
        record = next(name for name in source.namelist() if name.endswith(".dist-info/RECORD"))
        members = {
            name: source.read(name) for name in source.namelist() if name != record and not name.startswith(LEFT_OUT)
        }
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in members.items()
    ]
    members[record] = "".join([*lines, f"{record},,\n"]).encode()
    with tempfile.SpooledTemporaryFile() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
            for name, data in members.items():
                target.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
        buffer.seek(0)
        return buffer.read()


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs, its extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    return [
        line.removeprefix("Requires-Dist: ")
        for line in lines
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]


def weights(root: Path) -> dict[str, list[Path]]:
    """The files of each bundled model, by the model's name."""
    folder = root / MODELS
    models = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    return {model.name: sorted(p for p in model.rglob("*") if p.is_file()) for model in models}
