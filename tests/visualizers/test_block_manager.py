"""The block manager's figure: the story is the engine's, each kind of event occurs, the counts agree."""

from __future__ import annotations

from itertools import product

import pytest

from minillm import hub
from minillm.backends.hash_model import HashModel
from minillm.models.tokenizer import load_tokenizer
from visualizers.contract import Number
from visualizers.figures import block_manager
from visualizers.figures.block_manager import LAST, LONGEST, VISUALIZER
from visualizers.levels.controls import control_html
from visualizers.levels.markdown import points
from visualizers.levels.snapshot import Snapshot
from visualizers.runs import block_moments
from visualizers.runs.block_moments import POOL_SLOTS, Run
from visualizers.runs.block_words import numbered

SIZES = (1, 4, 16)
COMBINATIONS = [pytest.param(size, cached, id=f"{size}-{cached}") for size, cached in product(SIZES, (True, False))]
_encode = load_tokenizer(hub.BUNDLED / "tiny").encode
_runs: dict[tuple[int, bool], Run] = {}


def hashed(size: int, cached: bool) -> Run:
    """The same run on the hash model: which block goes where depends on lengths and prompts alone."""
    if (size, cached) not in _runs:
        _runs[size, cached] = block_moments.serve(HashModel(vocab_size=4096), _encode, size, cached)
    return _runs[size, cached]


@pytest.fixture
def on_hash_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_moments, "run", hashed)


@pytest.mark.parametrize(("size", "cached"), COMBINATIONS)
def test_at_every_moment_blocks_and_tables_say_the_same(size: int, cached: bool) -> None:
    for moment in hashed(size, cached).moments:
        assert [b.block for b in moment.blocks] == list(range(1, POOL_SLOTS // size + 1))
        holders = {b.block: set(b.holders) for b in moment.blocks}
        for s in moment.sequences:
            assert {block for block, names in holders.items() if s.name in names} == set(s.table)
            assert s.computed <= s.known
            # A table covers what is computed, and at a moment of planning what is about to be.
            assert len(s.table) * size >= s.computed or s.status == "done"
        for b in moment.blocks:
            assert 0 <= b.filled <= size
            assert len(b.holders) < 2 or b.filled == size, "a block is shared before it is full"
            assert not (b.holders and b.cached_of)


def test_what_the_figure_is_for_happens_at_the_default_block_size() -> None:
    moments = hashed(4, True).moments
    tally = moments[-1].tally
    assert tally.hit_tokens
    assert tally.evicted_blocks
    assert tally.preemptions
    assert any(len(b.holders) > 1 for m in moments for b in m.blocks)
    assert any(b.cached_of for m in moments for b in m.blocks)
    assert any(s.status == "waiting" for m in moments for s in m.sequences)
    words = " ".join(m.what for m in moments)
    for word in ("arrives", "starts on cached", "takes block", "is lost", "is preempted", "fills", "ends and gives"):
        assert word in words, word


@pytest.mark.parametrize("size", SIZES)
def test_without_the_cache_nothing_is_shared_kept_or_hit_and_more_is_computed(size: int) -> None:
    off, on = hashed(size, False), hashed(size, True)
    assert all(len(b.holders) < 2 and not b.cached_of for m in off.moments for b in m.blocks)
    assert off.moments[-1].tally.hit_tokens == off.moments[-1].tally.evicted_blocks == 0
    assert off.moments[-1].tally.computed_tokens > on.moments[-1].tally.computed_tokens


@pytest.mark.parametrize(("size", "cached"), COMBINATIONS)
def test_every_request_ends_with_its_tokens_and_all_blocks_free(size: int, cached: bool) -> None:
    last = hashed(size, cached).moments[-1]
    for job, s in zip(block_moments.JOBS, last.sequences, strict=True):
        assert (s.status, s.known) == ("done", len(_encode(job.prompt)) + job.max_tokens)
        assert s.known <= LONGEST
    assert not any(b.holders for b in last.blocks)
    # Each known token but the last of a request is computed or hit, some of them twice.
    needed = sum(s.known - 1 for s in last.sequences)
    assert last.tally.computed_tokens + last.tally.hit_tokens >= needed
    if not last.tally.preemptions:
        assert last.tally.computed_tokens + last.tally.hit_tokens == needed


def test_the_slider_ends_where_the_longest_run_ends() -> None:
    assert max(len(hashed(size, cached).moments) for size in SIZES for cached in (True, False)) == LAST + 1


@pytest.mark.usefixtures("on_hash_model")
def test_values_are_those_counted_from_the_picture() -> None:
    for step, size, caching in product((0, 1, 9, 20, 33, 47, LAST), SIZES, ("on", "off")):
        data = block_manager.compute({"step": step, "block_size": str(size), "prefix_caching": caching})
        pool, tables = data.rows["pool"], data.rows["tables"]
        values = data.values
        assert values["used_blocks"] + values["free_blocks"] == values["total_blocks"] == len(pool) == 96 // size
        assert values["used_blocks"] + values["saved_blocks"] == len(tables)
        assert values["cached_blocks"] == sum(
            row["owner"] == block_manager.CACHED and row["label"] != "" for row in pool
        )
        empty = sum(row["x1"] - row["fill"] for row in pool if row["label"].isupper()) / block_manager.WIDE
        # A block is drawn a little narrower than its slots.
        assert empty * size / (size - 2 * block_manager.GAP) == pytest.approx(values["empty_slots"], abs=0.05)
        assert {row["owner"] for row in [*pool, *tables]} <= set(block_manager.OWNERS)
        assert values["run_computed_tokens"] >= values["computed_tokens"]
        assert block_manager.table(data).rows[0]["request"] == "A"


@pytest.mark.usefixtures("on_hash_model")
@pytest.mark.parametrize(("size", "cached"), COMBINATIONS)
def test_the_slider_of_each_run_ends_where_it_ends(size: int, cached: bool) -> None:
    snapshot = Snapshot(VISUALIZER)
    inputs = VISUALIZER.parse({"block_size": str(size), "prefix_caching": "on" if cached else "off"})
    step = next(i for i in VISUALIZER.inputs if isinstance(i, Number))
    end = snapshot.end(step, inputs)
    assert end == len(hashed(size, cached).moments) - 1
    assert max(points(step, end)) == end
    assert f'max="{end}"' in control_html(step, step.default, "f", end)
    before, last = (snapshot.at({**inputs, "step": moment}).data.values for moment in (end - 1, end))
    assert not before["what"].startswith("The run has ended")
    assert last["engine_step"] == last["run_steps"]


@pytest.mark.usefixtures("on_hash_model")
def test_past_its_end_a_run_stays_there() -> None:
    ended = block_manager.compute({"step": LAST, "block_size": "16", "prefix_caching": "on"})
    assert ended.values["what"].startswith("The run has ended")
    assert ended.values["used_blocks"] == 0
    assert not any(row["changed"] for row in ended.rows["pool"])


@pytest.mark.usefixtures("on_hash_model")
def test_letters_tell_what_colours_tell() -> None:
    """For a reader who sees no colours: capitals hold, several share, small letters are cached, none is free."""
    data = block_manager.compute({"step": VISUALIZER.defaults()["step"], "block_size": "4", "prefix_caching": "on"})
    for row in data.rows["pool"]:
        label, owner = row["label"], row["owner"]
        if owner == block_manager.SHARED:
            assert len(label) > 1
            assert label.isupper()
        elif owner == block_manager.CACHED:
            assert label == label.lower()
        else:
            assert label == owner
    assert {row["owner"] for row in data.rows["pool"]} >= {block_manager.SHARED, block_manager.CACHED, "A"}


def test_block_numbers_in_words() -> None:
    assert numbered([3]) == "block 3"
    assert numbered([2, 1]) == "blocks 1 and 2"
    assert numbered([8, 1, 7]) == "blocks 1, 7 and 8"
    assert numbered([9, 1, 2, 3, 7, 8]) == "blocks 1 to 3 and 7 to 9"


def test_the_bundled_model_tells_the_same_story_as_the_hash_model() -> None:
    """Blocks follow lengths and prompts, not what is sampled: the figure's run is the one tested above."""
    assert block_moments.run(4, True) == hashed(4, True)


@pytest.mark.usefixtures("on_hash_model")
@pytest.mark.parametrize("size", SIZES)
def test_each_arrow_goes_from_a_place_in_a_table_to_its_block_of_the_pool(size: int) -> None:
    for step in range(0, LAST, 3):
        data = block_manager.compute({"step": step, "block_size": str(size), "prefix_caching": "on"})
        moment = hashed(size, True).moments[min(step, len(hashed(size, True).moments) - 1)]
        pool, tables = data.rows["pool"], data.rows["tables"]
        assert [row["key"] for row in data.rows["blocks"]] == [row["key"] for row in [*pool, *tables]]
        by_block = {row["group"]: row for row in pool}
        for row in tables:
            block = by_block[row["group"]]
            # The chart finds the end of an arrow from the block's number alone.
            slot = (int(row["group"]) - 1) * size
            assert (block["x0"] + block["x1"]) / 2 == pytest.approx(
                block_manager.WIDE * (slot % block_manager.SLOTS_A_ROW + size / 2)
            )
            ends_at = slot // block_manager.SLOTS_A_ROW * block_manager.POOL_ROW + block_manager.BLOCK_BOTTOM
            assert block["bottom"] == ends_at < row["top"]
            # Its width and height too.
            assert row["x1"] - row["x0"] == pytest.approx(size - 2 * block_manager.GAP)
            assert block["x1"] - block["x0"] == pytest.approx(block_manager.WIDE * (size - 2 * block_manager.GAP))
            assert row["bottom"] - row["top"] == block_manager.TABLE_BLOCK
            assert row["changed"] == ((row["request"], int(row["group"])) in moment.taken)
            # What a request has got in this moment is marked in the pool too.
            assert block["changed"] or not row["changed"]


def test_the_picture_begins_where_a_request_finds_cached_blocks() -> None:
    step = int(VISUALIZER.defaults()["step"])
    moment = hashed(4, True).moments[step]
    assert "starts on cached" in moment.what
    shared = {block for name, block in moment.taken if name == "D"}
    assert len(shared & set(moment.sequences[0].table)) > 3
