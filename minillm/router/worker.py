"""What a router and its policies look at: a request on its way, and the engine that it may go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.core.kv.block_keys import ExtraKey


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a router looks at of a request."""

    request_id: str
    token_ids: Sequence[int]  # of the prompt
    max_tokens: int
    session: str | None = None  # requests of one session go on from each other
    extras: tuple[ExtraKey, ...] = ()  # what else the K/V depends on, a salt included

    @property
    def num_tokens(self) -> int:
        """What it adds to a worker's load: its prompt and the longest output, as if nothing were cached."""
        return len(self.token_ids) + self.max_tokens


@dataclass(slots=True)
class Worker:
    """One engine, as the router sees it."""

    name: str
    is_healthy: bool = True
    load_tokens: int = 0  # of the requests that are there
    requests: dict[str, int] = field(default_factory=dict)  # their tokens, by id, in order of arrival
