"""Hand-off: whatever the network does and whoever fails, a request costs a recompute at most, never a wrong token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_harness import make_engine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from lossy_network import LossyNetwork
from random_choices import HypothesisDraw
from transfer_callers import TransferCallers, hand_off, run_transfers

from minillm.backends.simulated import Weightless
from minillm.core.blocks import PoolError
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, EngineError
from minillm.core.observe.integrity import check_kv
from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams
from minillm.transfer import (
    Ask,
    Block,
    DeviceStore,
    Done,
    Fetch,
    Gone,
    Intake,
    Message,
    Offer,
    Prefix,
    PullState,
    Source,
)

GREEDY = SamplingParams(temperature=0, max_tokens=4)
PROMPT = [0, 1, 1, 0, 1, 0, 0]


class TransferMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = TransferCallers(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))

    def teardown(self) -> None:
        if hasattr(self, "callers"):
            self.callers.finish()


TestTransfers = TransferMachine.TestCase
TestTransfers.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_i36_a_bad_network_costs_recomputes_and_no_wrong_token(tmp_path: Path) -> None:
    """The audits are in ``run_transfers``; here, that its cases are those that they should be."""
    runs = [run_transfers(case, folder=tmp_path / str(case)) for case in range(60)]
    came = [run.came for run in runs]
    assert sum(came) > 100, "transfers that came whole"
    assert sum(run.failed for run in runs) > 100, "transfers that did not"
    assert sum(run.network.loss > 0 for run in runs) > 20
    assert sum(job.aborted for run in runs for job in run.jobs.values()) > 20
    assert sum(node.boot for run in runs for node in run.nodes.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_long_fuzz(block: int) -> None:
    for case in range(1000 * (block + 1), 1000 * (block + 2)):
        run_transfers(case)


def test_over_a_good_network_nothing_is_computed_twice() -> None:
    for case in range(40):
        hand_off(case)


# --- one prefill and one decode engine, message by message ------------------------------------------------


class Pair:
    """A prefill engine that has computed ``PROMPT``, and a decode engine that wants it."""

    def __init__(self, decode_blocks: int = 12, overlap: int = 0) -> None:
        self.network = LossyNetwork(0)
        self.prefill, self.prefill_model = make_engine(EngineConfig(block_size=2, num_blocks=12, max_model_len=12))
        self.decode, self.decode_model = make_engine(
            EngineConfig(block_size=2, num_blocks=decode_blocks, max_model_len=12, overlap=overlap)
        )
        self.store = DeviceStore(self.decode, "hash", max_held_share=1.0)
        self.source = Source("p", DeviceStore(self.prefill, "hash"), self.network.send, lease_s=8.0)
        self.intake = Intake(
            "d", self.decode, self.store, self.network.send, retry_s=2.0, timeout_s=6.0, hold_s=5.0
        )  # fmt: skip
        self.network.nodes = {"p": self.source.on_message, "d": self.intake.on_message}
        serve(self.prefill, PROMPT, "prefill", max_tokens=1)

    def tick(self, now_s: float) -> None:
        self.network.deliver(now_s)
        self.source.tick(now_s)
        self.intake.tick(now_s)
        self.decode.step()

    def sent(self, kind: type[Message]) -> list[Message]:
        return [message for _, message in self.network.log if isinstance(message, kind)]

    def drop_next(self, kind: type[Message]) -> Callable[[], None]:
        """Lose every message of a kind until the function returned is called."""
        send = self.network.send

        def lossy(to: str, message: Message) -> None:
            self.network.log.append((to, message)) if isinstance(message, kind) else send(to, message)

        for one in (self.source, self.intake.importer):
            one._send = lossy

        def mend() -> None:
            self.source._send = self.intake.importer._send = send

        return mend


def serve(engine: Engine, prompt: list[int], request_id: str, max_tokens: int = 4) -> list[int]:
    request = engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=max_tokens), request_id=request_id)
    for _ in engine.run():
        pass
    return request.output_ids


def expected(prompt: list[int] = PROMPT) -> list[int]:
    engine, _ = make_engine(EngineConfig(num_blocks=12))
    return serve(engine, prompt, "alone")


def run_to_the_end(pair: Pair, now_s: float = 0.0) -> list[int]:
    for tick in range(60):
        pair.tick(now_s + tick)
    pair.decode.check()
    pair.prefill.check()
    assert pair.prefill.kv.pool.num_used == pair.decode.kv.pool.num_used == 0
    assert not pair.source.num_leases
    assert not pair.intake.num_waiting
    return pair.decode.requests["r"].output_ids


def test_a_request_goes_from_one_engine_to_the_other() -> None:
    pair = Pair()
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    assert pair.decode.requests["r"].num_cached == 6
    assert [type(m) for _, m in pair.network.log] == [Ask, Offer, Fetch, Block, Block, Block, Done]


@pytest.mark.parametrize("kind", [Ask, Offer, Fetch, Block, Done])
def test_row_86_each_message_lost_for_ever_frees_both_sides(kind: type[Message]) -> None:
    pair = Pair()
    pair.drop_next(kind)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    assert pair.decode.requests["r"].num_cached == (6 if kind is Done else 0)
    assert pair.source.counts["timeout"] == (kind in (Offer, Done)), "who does not know the lease cannot end it"


@pytest.mark.parametrize("kind", [Ask, Offer, Fetch, Block])
def test_row_86_a_message_lost_once_is_asked_for_again(kind: type[Message]) -> None:
    pair = Pair()
    mend = pair.drop_next(kind)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.tick(0.0)
    mend()
    assert run_to_the_end(pair, 1.0) == expected()
    assert pair.decode.requests["r"].num_cached == 6


def test_row_86_a_lease_that_has_ended_is_not_read_under() -> None:
    """The blocks were given other content meanwhile: the reader hears so, and computes."""
    pair = Pair()
    mend = pair.drop_next(Fetch)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.tick(0.0)
    mend()
    pair.source.tick(8.0)
    assert pair.source.counts == {"timeout": 1}
    for i in range(4):
        serve(pair.prefill, [i % 2] * 8, f"other{i}")
    pair.intake.tick(5.0)
    assert run_to_the_end(pair, 5.0) == expected()
    assert len(pair.sent(Gone)) == 1
    assert pair.decode.requests["r"].num_cached == 0


@pytest.mark.parametrize("after", range(8))
def test_row_87_an_abort_at_each_phase_frees_both_sides(after: int) -> None:
    pair = Pair()
    pair.network.max_delay_s = 0.0
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    for _ in range(after):  # one message after the other
        if pair.network._under_way:
            _, _, to, message = pair.network._under_way.pop(0)
            pair.network.nodes[to](message, 0.0)
    assert pair.intake.abort("r", 1.0)
    assert not pair.intake.abort("r", 1.0)
    assert run_to_the_end(pair, 1.0) == []
    events = [event for event in pair.decode.trace.events if event.request_id == "r" and event.kind == "finish"]
    assert [event.note for event in events] == ["abort"]


def test_row_87_a_prefill_that_was_aborted_hands_over_whole_blocks_or_none() -> None:
    pair = Pair()
    long = [1, 1, 1, 0, 0, 0, 1, 0]
    aborted = pair.prefill.add_request(long, GREEDY, request_id="aborted")
    pair.prefill.abort(aborted.request_id)
    pair.prefill.step()
    pair.intake.submit("r", long, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected(long)
    assert pair.decode.requests["r"].num_cached == 0


def test_row_88_room_is_not_written_while_a_step_that_had_it_runs() -> None:
    pair = Pair(decode_blocks=8, overlap=1)
    busy = pair.decode.add_request([0] * 7, GREEDY, request_id="busy")
    pair.decode.step()
    pair.decode.abort("busy")
    pair.decode.step()  # it has ended; a step that was planned with it is in flight
    assert busy.is_finished
    pair.decode.add_request([1, 1], SamplingParams(temperature=0, max_tokens=6), request_id="other")
    pair.decode.step()
    assert pair.decode.num_planned > pair.decode.num_steps
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.network.deliver(0.0)
    [transfer] = pair.intake.importer._pulls
    assert pair.intake.importer.state(transfer) is PullState.COMPLETE
    assert pair.decode.kv.holds.find(PROMPT, ()) == []
    assert run_to_the_end(pair, 1.0) == expected()
    assert pair.decode.requests["r"].num_cached == 6


def test_row_89_an_offer_for_which_there_is_no_room_now_is_kept() -> None:
    pair = Pair(decode_blocks=7)
    pair.decode.add_request([0] * 7, SamplingParams(temperature=0, max_tokens=4), request_id="first")
    pair.decode.step()
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.network.deliver(0.0)
    [transfer] = pair.intake.importer._pulls
    assert pair.intake.importer.state(transfer) is PullState.OFFERED
    assert run_to_the_end(pair, 1.0) == expected()
    assert pair.decode.requests["r"].num_cached == 6, "it came once the first had left"


def test_row_34_messages_about_what_nobody_knows_are_counted_and_change_nothing() -> None:
    pair = Pair()
    free = pair.decode.kv.pool.num_free
    strays = [
        Offer("p", "x", 7, 3),
        Block("p", "x", 7, 0, b"[]"),
        Gone("p", "x", 7),
        Ask("d", "y", Prefix((1, 1, 1, 1)), "other layout"),
        Fetch("d", "y", 9, (0, 1)),
        Done("d", "y", 9),
        Offer("d", "z", 1, 1),
    ]
    for message in strays:
        pair.intake.on_message(message, 0.0)
        pair.source.on_message(message, 0.0)
    assert pair.intake.importer.counts["ignored"] == len(strays)
    assert pair.source.counts["ignored"] == len(strays) - 1  # it has an answer to the question
    assert pair.decode.kv.pool.num_free == free
    assert not pair.source.num_leases
    assert Done("d", "x", 7) in [message for _, message in pair.network.log], "a lease that nobody waits for is ended"
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.network.deliver(0.0)
    pair.source.on_message(Fetch("d", "r from p, boot 0", 1, (99, -1)), 0.0)
    assert run_to_the_end(pair) == expected()


def test_a_damaged_block_ends_the_lease_and_costs_a_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr(pair.source._store, "read", lambda slot: None)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    assert pair.source.counts == {"stale": 1}


@pytest.mark.parametrize("error", [OSError("no space left on device"), ValueError("a block of another size")])
def test_blocks_that_cannot_be_written_cost_a_recompute(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fill(*_: object) -> None:
        raise error

    pair = Pair()
    monkeypatch.setattr(pair.decode_model, "write_blocks", fill)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    assert pair.intake.importer.counts == {"unwritten": 1, "failed": 1}
    assert not pair.intake.importer.num_held


def test_what_is_no_prompt_reaches_no_source_and_what_reaches_one_is_answered() -> None:
    pair = Pair()
    salts: list[Any] = [5, "\ud800", b"x"]
    for number, salt in enumerate(salts):
        pair.intake.submit(f"s{number}", PROMPT, GREEDY, ["p"], 0.0, salt=salt)
        assert "salt key of value" in pair.intake.refused[f"s{number}"]
    prompts: list[Any] = [[-1, 1], [2**40], "text", None, [0.5, 1], []]
    for number, prompt in enumerate(prompts):
        pair.intake.submit(f"p{number}", prompt, GREEDY, ["p"], 0.0)
        assert "prompt" in pair.intake.refused[f"p{number}"]
    assert not pair.network.log
    for tokens in ((-1, 1), (2**40, 1), (0.5, 1), ("a", "b")):
        pair.source.on_message(Ask("d", "t", Prefix(tokens), pair.store.layout), 0.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ids are whole numbers"):
            pair.intake.importer.pull("t", "p", Prefix(tokens), 0.0)  # type: ignore[arg-type]
    assert pair.source.counts == {"ignored": 4}
    assert pair.sent(Gone) == [Gone("p", "t", 0)] * 4
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    with pytest.raises(RequestError, match="'r' is taken"):
        pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert not pair.intake.num_waiting


def test_what_cannot_be_is_refused() -> None:
    pair = Pair()
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    with pytest.raises(RequestError, match="waits already"):
        pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    with pytest.raises(ValueError, match="each its own name"):
        pair.intake.importer.pull("r from p, boot 0", "p", Prefix((1, 1)), 0.0)
    pair.intake.submit("long", [0] * 20, GREEDY, ["p"], 0.0)
    assert "prompt has 20 tokens" in pair.intake.refused["long"]
    plain, _ = make_engine(EngineConfig(num_blocks=9, prefix_caching=False))
    with pytest.raises(ValueError, match="prefix_caching is off"):
        DeviceStore(plain, "hash")
    with pytest.raises(TypeError, match="Weightless has no read_blocks"):
        DeviceStore(Engine(Weightless(64), EngineConfig(num_blocks=9)), "none")


def test_a_hold_keeps_a_cached_prefix_from_being_evicted() -> None:
    pair = Pair()
    kv = pair.prefill.kv
    blocks = kv.holds.find(PROMPT, ())
    kv.holds.hold("someone", blocks)
    for i in range(6):
        serve(pair.prefill, [i % 2] * 6, f"other{i}")
    assert kv.holds.find(PROMPT, ()) == blocks
    check_kv(kv)
    assert "someone" in kv.holds
    with pytest.raises(PoolError, match="someone holds 3 blocks already"):
        kv.holds.hold("someone", blocks)
    kv.holds.let_go("someone")
    kv.holds.let_go("someone")
    assert kv.pool.num_used == 0


def test_a_request_that_waits_for_held_blocks_is_told_so() -> None:
    pair = Pair()
    kv = pair.prefill.kv
    assert kv.holds.take("someone", kv.pool.num_free - 1)
    pair.prefill.add_request(PROMPT, GREEDY)
    with pytest.raises(EngineError, match="10 blocks are held for transfers"):
        list(pair.prefill.run())


def test_room_is_filled_whole_or_not_at_all() -> None:
    pair = Pair()
    prefix = Prefix((0, 1, 1, 0))
    assert pair.store.reserve("t", prefix, 2) == [0, 1]
    with pytest.raises(ValueError, match=r"room for blocks 0 to 1, \[0\] came"):
        pair.store.fill("t", prefix, {0: b"[]"})
    assert pair.decode.kv.holds.find(prefix.token_ids, ()) == []


def test_an_offer_heard_twice_is_taken_once_and_another_lease_is_given_back() -> None:
    pair = Pair()
    mend = pair.drop_next(Block)
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    pair.network.deliver(0.0)
    [offer] = pair.sent(Offer)
    assert isinstance(offer, Offer)
    asked = len(pair.sent(Fetch))
    pair.intake.on_message(offer, 0.0)
    assert len(pair.sent(Fetch)) == asked
    pair.intake.on_message(offer._replace(lease=99), 0.0)
    assert pair.network.log[-1] == ("p", Done("d", offer.transfer, 99))
    pair.source.on_message(Gone("d", offer.transfer, offer.lease), 0.0)  # not a message for a source
    assert pair.source.counts["ignored"] == 1
    mend()
    assert run_to_the_end(pair, 1.0) == expected()


def test_leases_take_no_more_than_their_share() -> None:
    pair = Pair()
    pair.source._store._max_held = 2  # type: ignore[attr-defined]
    pair.intake.submit("r", PROMPT, GREEDY, ["p"], 0.0)
    assert run_to_the_end(pair) == expected()
    assert pair.sent(Gone) == [Gone("p", "r from p, boot 0", 0)]
