"""The side of a transfer that has the blocks: it leases them, reads them out, and ends every lease."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minillm.transfer.protocol import Ask, Block, BlockStore, Done, Fetch, Gone, Message, Offer, Prefix, Send


@dataclass(slots=True)
class _Lease:
    number: int
    to: str
    slots: list[int]
    epochs: list[int]
    expires_s: float


class Source:
    """Answers who asks for blocks of ``store``. One lease a transfer, each for ``lease_s`` seconds."""

    def __init__(self, name: str, store: BlockStore, send: Send, *, lease_s: float, boot: int = 0) -> None:
        """``boot`` tells a restarted source from the one before: its leases have other numbers."""
        self.name = name
        self._store = store
        self._send = send
        self._lease_s = lease_s
        self._number = boot << 32
        self._leases: dict[str, _Lease] = {}
        self.counts: Counter[str] = Counter()  # "ack" and "timeout" of leases, "ignored" messages, "stale" reads

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def offer(self, transfer: str, to: str, prefix: Prefix, now_s: float) -> bool:
        """Lease what is here of the prefix, and say so. False if nothing is, or too much is leased already.

        ``ValueError`` for a prefix of what is no token id.
        """
        prefix.check()
        lease = self._leases.get(transfer)
        if lease is None:
            slots = self._store.find(prefix)
            if not slots or not self._store.hold(self._holder(self._number + 1), slots):
                return False
            self._number += 1
            epochs = [self._store.epoch(slot) for slot in slots]
            lease = self._leases[transfer] = _Lease(self._number, to, slots, epochs, now_s + self._lease_s)
        self._send(to, Offer(self.name, transfer, lease.number, len(lease.slots)))
        return True

    def on_message(self, message: Message, now_s: float) -> None:
        self.tick(now_s)  # a lease that is over serves nobody, even if nobody has looked at it since
        if isinstance(message, Ask):
            try:
                is_offered = message.layout == self._store.layout and self.offer(
                    message.transfer, message.sender, message.prefix, now_s
                )
            except ValueError:
                self.counts["ignored"] += 1
                is_offered = False
            if not is_offered:
                self._send(message.sender, Gone(self.name, message.transfer, 0))
            return
        lease = self._leases.get(message.transfer)
        if lease is None or lease.number != message.lease:
            self.counts["ignored"] += 1
            if isinstance(message, Fetch):
                self._send(message.sender, Gone(self.name, message.transfer, message.lease))
        elif isinstance(message, Done):
            self._end(message.transfer, "ack")
        elif isinstance(message, Fetch):
            self._serve(message, lease)
        else:
            self.counts["ignored"] += 1

    def tick(self, now_s: float) -> None:
        """End the leases whose time is up."""
        for transfer in [t for t, lease in self._leases.items() if lease.expires_s <= now_s]:
            self._end(transfer, "timeout")

    def _serve(self, message: Fetch, lease: _Lease) -> None:
        for place in message.places:
            if not 0 <= place < len(lease.slots):
                self.counts["ignored"] += 1
                continue
            slot = lease.slots[place]
            # The lease keeps the content. That it did is checked where it matters: right before it is read.
            payload = self._store.read(slot) if self._store.epoch(slot) == lease.epochs[place] else None
            if payload is None:
                self._end(message.transfer, "stale")
                self._send(message.sender, Gone(self.name, message.transfer, lease.number))
                return
            self._send(message.sender, Block(self.name, message.transfer, lease.number, place, payload))

    def _end(self, transfer: str, why: str) -> None:
        self._store.drop(self._holder(self._leases.pop(transfer).number))
        self.counts[why] += 1

    def _holder(self, number: int) -> str:
        return f"{self.name} lease {number}"
