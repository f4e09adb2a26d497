"""The event log's place in the core: what the core tells of a run that nobody records is dropped here.

`minillm.core.observe.trace.EventLog` keeps it, and says what each kind of event means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Kind = Literal[
    "arrive", "hit", "admit", "fork", "copy", "evict", "allocate", "leave", "schedule", "draft", "verify", "index",
    "undo", "land", "drop", "token", "preempt", "retire", "swap_out", "swap_in", "host_free", "free", "abort",
    "finish", "error",
]  # fmt: skip


class Trace:
    """Takes the decisions of a run and keeps none of them."""

    enabled = False

    def __init__(self) -> None:
        self.events: list[Any] = []  # stays empty

    def mark(self, step: int, time_s: float) -> None:
        """The events from now on are of this step and time."""

    def emit(
        self,
        kind: Kind,
        request_id: str,
        blocks: Sequence[int] = (),
        tokens: int = 0,
        computed: int = 0,
        token_id: int = -1,
        note: str = "",
        group: int = 0,
    ) -> None:
        """One decision; `minillm.core.observe.trace` has what the fields mean for each kind."""


NO_TRACE = Trace()
