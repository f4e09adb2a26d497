"""Writes output so that a reader never sees half of it: whole trees are swapped, single files replaced."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from visualizers.site.errors import SiteError


def write(path: Path, data: str | bytes) -> bool:
    """Writes ``data`` where it differs from what is there, all or nothing. Returns whether it did.

    An untouched file keeps its time, by which a generator sees what changed.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    if path.is_file() and path.stat().st_size == len(raw) and path.read_bytes() == raw:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True


def place(source: Path, target: Path) -> None:
    """``source`` at ``target`` too: a hard link where the file system allows one, else a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, target)


def place_tree(source: Path, target: Path) -> None:
    """All files below ``source`` below ``target`` too."""
    for file in files_below(source):
        place(source / file, target / file)


def files_below(folder: Path) -> list[str]:
    """The paths of all files below ``folder``, relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextmanager
def locked(file: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds ``file`` as a lock between processes; says so where another one has it, and waits."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = file.open("w")
    except OSError as error:
        raise SiteError(
            f"{file.parent} cannot be written ({error.strerror}): a build keeps its work there and in .cache "
            "beside it; copy the project to a folder that can be written"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is at work in this project: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file frees the lock


# Lists what a build wrote, so that the next one deletes nothing else.
MARKER = ".handbook-build"
# What operating systems leave in any folder.
_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_LEFT_OVER_S = 86_400.0  # a fresh folder in which nothing moved for so long is of a build that was killed


@contextmanager
def swapped(out: Path) -> Iterator[Path]:
    """A fresh folder that becomes ``out`` when the block ends well; on any error ``out`` stays as it was.

    Raises :class:`SiteError` where ``out`` holds something that no build has written, or cannot be written.
    """
    _require_ours(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-new-", dir=out.parent))
    except OSError as error:
        raise SiteError(f"{out.parent} cannot be written ({error.strerror}): give another folder with --out") from error
    try:
        yield staging
        note_files(staging, files_below(staging))
        staging.chmod(0o755)
        _require_ours(out)  # what came while this was built is not ours either
        _exchange(staging, out)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise SiteError(
                f"no space left on the device of {out}: free some, or give a folder elsewhere with --out; "
                "the previous site is untouched"
            ) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_built(out: Path) -> bool:
    """Whether ``out`` is a site that a build wrote."""
    return (out / MARKER).is_file()


def note_files(out: Path, files: Iterable[str]) -> None:
    """Writes down that a build has put ``files`` into ``out``, beside those that it had noted before."""
    heading = "This folder is replaced as a whole by `handbook build`. Its files:"
    write(out / MARKER, "\n".join([heading, *sorted({*files, *_noted(out)}), ""]))


def _noted(out: Path) -> set[str]:
    if not is_built(out):
        return set()
    return set((out / MARKER).read_text(encoding="utf-8", errors="replace").split("\n")[1:-1])


def _require_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise SiteError(f"{out} is a file: give a folder with --out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not is_built(out):
        raise SiteError(
            f"{out} is not empty and was not written by a build: give another folder with --out, or empty it"
        )
    known = {MARKER, *_noted(out)}
    foreign = [file for file in files_below(out) if file not in known and Path(file).name not in _LITTER]
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise SiteError(
            f"{out} holds {foreign[0]}{more}, which no build has written and which would be lost: "
            "move it, or give another folder with --out"
        )


def _sweep(out: Path) -> None:
    """Removes what builds left that were killed."""
    for left in out.parent.glob(f".{glob.escape(out.name)}-new-*"):
        with suppress(OSError):
            if time.time() - max(path.lstat().st_mtime for path in (left, *left.rglob("*"))) > _LEFT_OVER_S:
                shutil.rmtree(left, ignore_errors=True)


def _exchange(staging: Path, out: Path) -> None:
    """``staging`` takes the place of ``out``; what was there goes only once the new site stands."""
    old = staging.with_name(staging.name.replace("-new-", "-old-"))
    if out.exists():
        out.rename(old)
    try:
        staging.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
