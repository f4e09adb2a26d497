"""Tiers: a state machine of slots, and what a disk may do to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from random_choices import HypothesisDraw
from tier_callers import TierCallers, random_tier_calls

from minillm.core.blocks import PoolError
from minillm.core.kv.block_keys import ExtraKey
from minillm.transfer import Prefix
from minillm.transfer.tiers import DiskMedium, HostMedium, SlotStore


class TierMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = TierCallers(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_a_tier_under_random_callers() -> None:
    random_tier_calls(range(400))


def store(tier: SlotStore, tokens: tuple[int, ...], payloads: list[bytes]) -> None:
    prefix = Prefix(tokens)
    places = tier.reserve("writer", prefix, len(payloads))
    assert places is not None
    tier.fill("writer", prefix, {place: payloads[place] for place in places})
    tier.drop("writer")


def test_what_is_on_disk_is_whole_or_not_there(tmp_path: Path) -> None:
    tier = SlotStore(DiskMedium(tmp_path / "kv"), 4, 2, "any")
    store(tier, (1, 2, 3, 4, 5, 6), [b"one", b"two", b"three"])
    slots = tier.find(Prefix((1, 2, 3, 4, 5, 6)))
    assert tier.hold("reader", slots)
    assert [tier.read(slot) for slot in slots] == [b"one", b"two", b"three"]
    for damage in (lambda p: p.write_bytes(p.read_bytes()[:-1]), lambda p: p.write_bytes(b"short"), Path.unlink):
        damage(tmp_path / "kv" / f"{slots[1]}.kv")
        assert tier.read(slots[1]) is None
    assert tier.find(Prefix((1, 2, 3, 4, 5, 6))) == slots[:1], "behind a lost block nothing is found"
    tier.drop("reader")
    tier.check()
    store(tier, (1, 2, 3, 4), [b"one", b"two"])
    assert [path.suffix for path in (tmp_path / "kv").iterdir()] == [".kv"] * 3
    assert len(tier.find(Prefix((1, 2, 3, 4, 5, 6)))) == 3


def test_another_layout_salt_or_order_of_tokens_is_another_prefix() -> None:
    tier = SlotStore(HostMedium(), 4, 2, "any")
    store(tier, (1, 2, 3, 4), [b"one", b"two"])
    assert len(tier.find(Prefix((1, 2, 3, 4, 5)))) == 2
    assert tier.find(Prefix((1, 2, 3, 4), (ExtraKey("salt", "a"),))) == []
    assert tier.find(Prefix((3, 4))) == []
    assert tier.find(Prefix((1,))) == []


def test_wrong_use_is_an_error_with_the_numbers() -> None:
    tier = SlotStore(HostMedium(), 4, 2, "any")
    with pytest.raises(ValueError, match="tier of 0 slots"):
        SlotStore(HostMedium(), 0, 2, "any")
    assert tier.reserve("a", Prefix((1, 2, 3, 4)), 2) == [0, 1]
    with pytest.raises(PoolError, match="holds 2 slots already"):
        tier.hold("a", [])
    with pytest.raises(PoolError, match=r"room for blocks \[0, 1\], \[1\] came"):
        tier.fill("a", Prefix((1, 2, 3, 4)), {1: b""})


def test_check_finds_damage() -> None:
    def tier() -> SlotStore:
        made = SlotStore(HostMedium(), 4, 2, "any")
        store(made, (1, 2, 3, 4), [b"one", b"two"])
        assert made.hold("a", made.find(Prefix((1, 2))))
        made.check()
        return made

    for damage in (
        lambda t: t._slots[0].holders.append("b"),
        lambda t: t._ready.clear(),
        lambda t: setattr(t._slots[1], "digest", b"x"),
        lambda t: setattr(t, "_max_held", 0),
    ):
        broken = tier()
        damage(broken)
        with pytest.raises(PoolError):
            broken.check()
