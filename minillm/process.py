"""What a console command needs of its process: streams that are there and take any text, an end that cleans up.

Shared by ``minillm``, ``python -m visualizers`` and ``handbook``.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from types import FrameType


def prepare() -> None:
    """To be called first. Raises ``OSError`` where standard output is closed, since nothing could be answered.

    A closed standard input is an empty one, a closed standard error swallows what is said. Text that a
    stream's encoding lacks is written as ``?``, not refused in mid-sentence. SIGTERM and SIGHUP unwind
    the stack as Ctrl-C does, so that nothing half-written is left; one that is ignored stays so.
    """
    # A closed stream is None, and its number would be given to the next file that is opened.
    stdout_is_closed = sys.stdout is None
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the life of the process
    if stdout_is_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if stdout_is_closed:
        raise OSError(errno.EBADF, "standard output is closed: redirect it to a file, or to /dev/null")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # `utf8` names the place of what is no text
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # no SIGHUP on Windows
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def utf8(text: str, what: str) -> str:
    """``text`` of a command line or of standard input; ``ValueError`` where its bytes were no UTF-8.

    Python keeps bytes that it cannot decode as lone surrogates. In a C locale those may be good UTF-8.
    """
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    raw = os.fsencode(text)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} is not UTF-8 text: byte {error.start:,} is 0x{raw[error.start]:02x}; give text, or convert it"
        ) from None


def explain(error: OSError) -> str:
    """An operating system's error in words: what could not be used, and why."""
    reason = error.strerror or str(error)
    if error.errno == errno.EBADF or error.strerror is None:
        return reason
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    return f"the output cannot be written ({reason})"
