"""Writes output so that a reader never sees half of it: whole trees are swapped, single files replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is at work in this project: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file frees the lock


@contextmanager
def swapped(out: Path) -> Iterator[Path]:
    """A fresh folder that becomes ``out`` when the block ends well; on any error ``out`` stays as it was.

    Raises :class:`SiteError` where ``out`` holds something that no build has written.
    """
    if out.exists() and not out.is_dir():
        raise SiteError(f"{out} is a file: give a folder with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise SiteError(
            f"{out} is not empty and was not written by a build: give another folder with --out, or empty it"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-new-", dir=out.parent))
    try:
        yield staging
        (staging / MARKER).write_text("This folder is replaced as a whole by `handbook build`.\n", encoding="utf-8")
        staging.chmod(0o755)
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


MARKER = ".handbook-build"


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
