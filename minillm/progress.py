"""A progress bar on stderr: redrawn in a terminal, a line each tenth elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

REDRAW_S = 0.1
WIDTH = 28


class Bar:
    """Shows bytes done of bytes in all; silent until the first ``update``."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._is_terminal = sys.stderr.isatty()
        self._drawn_s = 0.0
        self._tenth = -1
        self._open = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open and self._is_terminal:
            sys.stderr.write("\n")

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        self._open = True
        ended = done_bytes == total_bytes
        if self._is_terminal:
            if ended or time.monotonic() - self._drawn_s >= REDRAW_S:
                self._drawn_s = time.monotonic()
                sys.stderr.write("\r" + self.text(done_bytes, total_bytes))
                sys.stderr.flush()
        elif total_bytes and (tenth := 10 * done_bytes // total_bytes) > self._tenth:
            self._tenth = tenth
            print(self.text(done_bytes, total_bytes), file=sys.stderr, flush=True)

    def text(self, done_bytes: int, total_bytes: int | None) -> str:
        done = f"{done_bytes / 1e6:.1f}"
        if not total_bytes:
            return f"{self._label}  {done} MB"
        full = WIDTH * done_bytes // total_bytes
        return f"{self._label}  [{'#' * full}{'.' * (WIDTH - full)}] {done} of {total_bytes / 1e6:.1f} MB"
