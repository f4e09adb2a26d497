"""What the runs set up alike: the pool holds what was asked for, requests end where they should, times repeat."""

from __future__ import annotations

import pytest

from minillm.backends.hash_model import HashModel
from minillm.core.errors import EngineError
from minillm.core.request import RequestError
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.measure import Times


@pytest.mark.parametrize(("pool_tokens", "block_size"), [(32, 16), (33, 16), (5, 1)])
def test_the_pool_has_room_for_its_tokens_and_the_null_block_comes_on_top(pool_tokens: int, block_size: int) -> None:
    bench = Bench(HashModel(vocab_size=16), pool_tokens, block_size=block_size)
    assert bench.engine.kv_usage().total_blocks == -(-pool_tokens // block_size)
    # The last token of an answer is drawn and never stored.
    fits = bench.ask([1] * (pool_tokens - 1), 2)
    bench.run()
    assert len(fits.output_ids) == 2
    room = bench.engine.kv_usage().total_blocks * block_size
    with pytest.raises((RequestError, EngineError)):
        bench.ask([1] * (room + 1), 2)


def test_a_request_ends_after_its_tokens_and_nothing_is_kept_or_logged_unasked() -> None:
    bench = Bench(HashModel(vocab_size=16), 256)
    prompt = list(range(2 * BLOCK_SIZE))
    asked = [bench.ask([t % 16 for t in prompt], length, name=name) for name, length in (("a", 3), ("b", 7))]
    bench.step(2)
    assert [len(r.output_ids) for r in asked] == [2, 2]
    bench.run()
    assert [r.request_id for r in bench.requests] == ["a", "b"]
    assert [len(r.output_ids) for r in bench.requests] == [3, 7]
    assert asked[1].num_cached == 0
    assert not list(bench.engine.trace.events)


def test_modelled_time_is_the_sum_of_the_steps_whatever_the_machine_takes() -> None:
    bench = Bench.modelled(HashModel(vocab_size=16), lambda plan: 2.5, 256, record_trace=True)
    late = bench.ask([1, 2, 3], 4, arrival_s=10.0)
    bench.run()
    assert late.token_times_s == [12.5, 15.0, 17.5, 20.0]
    assert list(bench.engine.trace.events)


def test_times_are_apart_only_where_their_spreads_are() -> None:
    quick, slow = Times.of([1.0, 1.1, 1.2, 1.3, 9.0]), Times.of([1.9, 2.0, 2.0, 2.1, 0.1])
    assert (quick.low_s, quick.median_s, quick.high_s) == (1.1, 1.2, 1.3)
    assert quick.differs_from(slow)
    assert slow.differs_from(quick)
    assert not quick.differs_from(Times.of([1.25, 1.3, 1.5, 1.6, 1.7]))
