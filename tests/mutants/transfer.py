"""Faults in tiers and in the hand-off of blocks: a bad network, random callers and a clean hand-off kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.core.kv.holds import BlockHolds
from minillm.transfer import DeviceStore, Importer, Intake, Source
from minillm.transfer.tiers import SlotStore

UNHELD = Edit(Source, "offer", "not self._store.hold(self._holder(self._number + 1), slots)", "False")

# Killed by engines and tiers over a network that loses, doubles, delays and reorders.
TRANSFER_MUTANTS: dict[str, list[Edit]] = {
    "a lease that holds nothing": [UNHELD],
    "a lease that holds nothing, read unchecked": [
        UNHELD,
        Edit(Source, "_serve", "if self._store.epoch(slot) == lease.epochs[place] else None", ""),
    ],
    "a lease without end": [Edit(Source, "tick", "if lease.expires_s <= now_s", "if False")],
    "another place is read": [Edit(Source, "_serve", "lease.slots[place]", "lease.slots[place - 1]")],
    "a lease let go while it is read": [
        Edit(
            Source,
            "on_message",
            "self._serve(message, lease)",
            "self._serve(message, lease) or self._store.drop(f'{self.name} lease {lease.number}')",
        )
    ],
    "taken over before all has come": [
        Edit(
            Importer,
            "_advance",
            "len(pull.payloads) == len(pull.places)",
            "len(pull.payloads) >= min(1, len(pull.places))",
        )
    ],
    "written while earlier steps run": [
        Edit(DeviceStore, "is_settled", "self._engine.num_steps >= self._fresh[holder][1]", "True")
    ],
    "copies decided before overlooked": [Edit(DeviceStore, "reserve", " + holds.await_copies(holder)", "")],
    "room kept when a transfer fails": [Edit(Importer, "_fail", "self._store.drop(self._holder(transfer))", "pass")],
    "asked without end": [Edit(Importer, "tick", "if now_s >= pull.deadline_s", "if False")],
    "held without end": [Edit(Importer, "tick", "if until_s <= now_s", "if False")],
    "a request lost with its transfer": [Edit(Intake, "_on_end", "self._next(request_id, waiting, now_s)", "pass")],
    "a request lost when it cannot be placed at once": [
        Edit(Importer, "_advance", "if places is None", "if places is None and self._pulls.pop(transfer)")
    ],
    "an abort that a transfer does not hear": [
        Edit(Intake, "abort", "self.importer.abort(waiting.transfer, now_s)", "pass")
    ],
    "late news of what has ended": [
        Edit(Importer, "on_message", "self._pulls.get(message.transfer)", "self._pulls[message.transfer]")
    ],
    "more held than may be": [Edit(DeviceStore, "_may_hold", "<= self._max_held", "< 99")],
    "room for what is here": [
        Edit(DeviceStore, "reserve", "holds.take(holder, count - len(here))", "holds.take(holder, count)")
    ],
    "held blocks are not counted": [Edit(BlockHolds, "hold", "self._pool.touch(block)", "pass")],
    "blocks let go and still held": [
        Edit(BlockHolds, "let_go", "self._blocks.pop(holder, [])", "self._blocks.get(holder, [])")
    ],
}

# Killed by one hand-off over a good network.
HAND_OFF_MUTANTS: dict[str, list[Edit]] = {
    "an acknowledgement that is not heard": [Edit(Source, "on_message", 'self._end(message.transfer, "ack")', "pass")],
    "no acknowledgement": [
        Edit(Importer, "_advance", "self._send(pull.source, Done(self.name, transfer, pull.lease))", "pass")
    ],
    "asked again what was answered": [Edit(Importer, "tick", "now_s >= pull.sent_s + self._retry_s", "True")],
    "filed before the end of the chain": [Edit(BlockHolds, "file", "chain = filed[0]", "pass")],
    "what came is not filed": [
        Edit(DeviceStore, "fill", "holds.file(holder, prefix.token_ids, prefix.extras)", "pass")
    ],
    "the salt lost on the way": [Edit(DeviceStore, "fill", "prefix.token_ids, prefix.extras", "prefix.token_ids, ()")],
    "blocks of a salt not found": [Edit(BlockHolds, "find", "token_ids, extra_keys, g", "token_ids, (), g")],
}

# Killed by random callers of one tier.
TIER_MUTANTS: dict[str, list[Edit]] = {
    "a held slot given away": [Edit(SlotStore, "_room", "if not self._slots[slot].holders", "if True")],
    "epoch of a slot kept": [Edit(SlotStore, "_room", "self._slots[slot].epoch += 1", "pass")],
    "freed while others hold it": [Edit(SlotStore, "drop", "not one.holders and ", "")],
    "damaged content found again": [Edit(SlotStore, "read", "del self._ready[digest]", "pass")],
    "damage of a copy hides the other": [
        Edit(SlotStore, "read", "self._ready.get(digest) == slot", "digest in self._ready")
    ],
    "the beginning goes before the end": [Edit(SlotStore, "find", "reversed(slots)", "slots")],
    "the same content twice": [Edit(SlotStore, "fill", "if digests[place] not in self._ready", "if True")],
    "content at another place": [Edit(SlotStore, "fill", "payloads[place]", "payloads[max(payloads)]")],
    "found behind a gap": [Edit(SlotStore, "find", "break", "continue")],
    "more slots held than may be": [Edit(SlotStore, "hold", "> self._max_held", "> len(self._slots)")],
    "room beyond the limit": [Edit(SlotStore, "_room", " or len(self._all_held()) + count > self._max_held", "")],
    "room half taken when there is too little": [Edit(SlotStore, "reserve", "self.drop(holder)", "pass")],
}
