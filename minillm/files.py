"""Writing a file that someone named: whole or not at all, and nothing removed that was not made here."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """``text`` in UTF-8 as the content of ``path``: written beside it, then renamed.

    A link keeps pointing to its file, which is replaced; the file's permissions stay. What is no regular file,
    such as a device or a pipe, is written to as it is. ``OSError`` where that cannot be, and then everything is as
    it was before.
    """
    root = path.absolute().parts[1:3]
    names_a_stream = root[:1] == ("proc",) or (root[:1] == ("dev",) and root != ("dev", "shm"))  # such as /dev/stdout
    if names_a_stream or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8") as stream:  # as it stands: a rename would put a file in its place
            stream.write(text)
        return
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    with beside.open("x", encoding="utf-8") as file:  # raises if there is one, which is not ours
        try:
            file.write(text)
            file.flush()
            if target.exists():
                beside.chmod(target.stat().st_mode & 0o7777)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
