"""The side of a transfer that wants the blocks: it asks until its time is up, and takes over all or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from minillm.transfer.protocol import Ask, Block, BlockStore, Done, Fetch, Gone, Message, Offer, Prefix, Send


class PullState(Enum):
    """What a transfer waits for."""

    ASKED = "an offer"
    OFFERED = "room for the blocks"
    FETCHING = "blocks"
    COMPLETE = "earlier steps on the same room"


@dataclass(slots=True)
class _Pull:
    source: str
    prefix: Prefix
    deadline_s: float
    sent_s: float
    state: PullState = PullState.ASKED
    lease: int = 0
    count: int = 0
    places: list[int] = field(default_factory=list)  # that have to come
    payloads: dict[int, bytes] = field(default_factory=dict)  # that came


class Importer:
    """Pulls prefixes into ``store``. What came stays held for the transfer until ``release`` or for ``hold_s``."""

    def __init__(
        self,
        name: str,
        store: BlockStore,
        send: Send,
        *,
        retry_s: float,
        timeout_s: float,
        hold_s: float,
        on_end: Callable[[str, int | None, float], None] = lambda transfer, count, now_s: None,
    ) -> None:
        """``on_end``: a transfer ended, with the blocks of the prefix that are here now, or None if it failed."""
        self.name = name
        self._store = store
        self._send = send
        self._retry_s = retry_s
        self._timeout_s = timeout_s
        self._hold_s = hold_s
        self._on_end = on_end
        self._pulls: dict[str, _Pull] = {}
        self._held: dict[str, float] = {}  # transfers that are done -> until when what came is held
        self.counts: Counter[str] = Counter()  # "done", "failed", of these "timeout" and "unwritten", and "ignored"

    @property
    def num_pulls(self) -> int:
        return len(self._pulls)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def state(self, transfer: str) -> PullState | None:
        """None if it has ended or never began."""
        pull = self._pulls.get(transfer)
        return None if pull is None else pull.state

    def pull(self, transfer: str, source: str, prefix: Prefix, now_s: float) -> None:
        """Begin to get what ``source`` has of a prefix. A name is used once, restarts included."""
        if transfer in self._pulls or transfer in self._held:
            raise ValueError(f"transfer {transfer!r} is under way or held: give each its own name")
        prefix.check()
        self._pulls[transfer] = pull = _Pull(source, prefix, now_s + self._timeout_s, now_s)
        self._ask(transfer, pull, now_s)

    def on_message(self, message: Message, now_s: float) -> None:
        pull = self._pulls.get(message.transfer)
        if pull is None or pull.source != message.sender:
            self.counts["ignored"] += 1
            if isinstance(message, Offer):  # a lease that nobody waits for
                self._send(message.sender, Done(self.name, message.transfer, message.lease))
        elif isinstance(message, Offer):
            self._on_offer(message, pull, now_s)
        elif isinstance(message, Gone) and message.lease == pull.lease and pull.state is not PullState.COMPLETE:
            pull.lease = 0  # so that nobody is told what they said
            self._fail(message.transfer, now_s)
        elif isinstance(message, Block) and message.lease == pull.lease and message.place in pull.places:
            pull.payloads[message.place] = message.payload
            self._advance(message.transfer, pull, now_s)
        else:
            self.counts["ignored"] += 1

    def tick(self, now_s: float) -> None:
        """Repeat what was not answered, go on with what had to wait, give up what took too long."""
        for transfer, pull in list(self._pulls.items()):
            if now_s >= pull.deadline_s:
                self.counts["timeout"] += 1
                self._fail(transfer, now_s)
                continue
            self._advance(transfer, pull, now_s)
            if now_s >= pull.sent_s + self._retry_s:
                self._ask(transfer, pull, now_s)
        for transfer in [t for t, until_s in self._held.items() if until_s <= now_s]:
            self.release(transfer)

    def abort(self, transfer: str, now_s: float) -> bool:
        """Give up a transfer; False if it is unknown or has ended."""
        if transfer not in self._pulls:
            return False
        self._fail(transfer, now_s)
        return True

    def release(self, transfer: str) -> None:
        """What came need not be kept for the transfer's sake any more."""
        if self._held.pop(transfer, None) is not None:
            self._store.drop(self._holder(transfer))

    def _on_offer(self, message: Offer, pull: _Pull, now_s: float) -> None:
        if pull.state is PullState.ASKED:
            pull.lease, pull.count, pull.state = message.lease, message.num_blocks, PullState.OFFERED
            self._advance(message.transfer, pull, now_s)
        elif message.lease != pull.lease:  # of a question that came twice
            self._send(message.sender, Done(self.name, message.transfer, message.lease))

    def _advance(self, transfer: str, pull: _Pull, now_s: float) -> None:
        """As far as it goes now."""
        if pull.state is PullState.OFFERED:
            places = self._store.reserve(self._holder(transfer), pull.prefix, pull.count)
            if places is None:
                return  # the offer is kept: room may come before the time is up
            pull.places, pull.state = places, PullState.FETCHING
            if places:
                self._ask(transfer, pull, now_s)
        if pull.state is PullState.FETCHING and len(pull.payloads) == len(pull.places):
            pull.state = PullState.COMPLETE
            self._send(pull.source, Done(self.name, transfer, pull.lease))
        if pull.state is PullState.COMPLETE and self._store.is_settled(self._holder(transfer)):
            try:
                self._store.fill(self._holder(transfer), pull.prefix, pull.payloads)
            except (OSError, ValueError):  # a full disk, or blocks of another size: it does without
                self.counts["unwritten"] += 1
                self._fail(transfer, now_s)
                return
            del self._pulls[transfer]
            self._held[transfer] = now_s + self._hold_s
            self.counts["done"] += 1
            self._on_end(transfer, pull.count, now_s)

    def _ask(self, transfer: str, pull: _Pull, now_s: float) -> None:
        """Say, or say again, what is wanted now."""
        pull.sent_s = now_s
        if pull.state is PullState.ASKED:
            self._send(pull.source, Ask(self.name, transfer, pull.prefix, self._store.layout))
        elif pull.state is PullState.FETCHING:
            missing = tuple(place for place in pull.places if place not in pull.payloads)
            self._send(pull.source, Fetch(self.name, transfer, pull.lease, missing))

    def _fail(self, transfer: str, now_s: float) -> None:
        pull = self._pulls.pop(transfer)
        self._store.drop(self._holder(transfer))
        if pull.lease and pull.state is not PullState.COMPLETE:
            self._send(pull.source, Done(self.name, transfer, pull.lease))
        self.counts["failed"] += 1
        self._on_end(transfer, None, now_s)

    def _holder(self, transfer: str) -> str:
        return f"{self.name} transfer {transfer}"
