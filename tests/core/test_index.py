"""Both prefix indexes: against a dictionary of whole prefixes, against each other, and each rule by its case."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_harness import drive, random_case, six_bits, without
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from index_callers import INDEXES, IndexCallers, random_index_calls
from random_choices import HypothesisDraw

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash, digest128
from minillm.core.kv.index import ROOT, Link, PrefixIndex
from minillm.core.kv.prefix import HashIndex

BOTH = pytest.mark.parametrize("kind", sorted(INDEXES))


class IndexMachine(RuleBasedStateMachine):
    @initialize(data=st.data(), kind=st.sampled_from(sorted(INDEXES)))
    def setup(self, data: st.DataObject, kind: str) -> None:
        self.callers = IndexCallers(HypothesisDraw(data), kind)

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_both_indexes_under_random_callers() -> None:
    random_index_calls(range(150))


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_both_indexes_make_the_same_decisions(seed: int) -> None:
    """Not only the same outputs: every event of a run, block by block."""
    # With a short hash, collisions would cost hits that a radix tree has.
    case = replace(random_case(random.Random(seed)), hash_function=digest128)
    hashed, radix = (drive(without(case, prefix_index=kind)) for kind in ("hash", "radix"))
    assert radix.engine.trace.events == hashed.engine.trace.events
    assert radix.ids() == hashed.ids()


def keys_of(*blocks: list[int], hash_function: Hash = digest128, extras: tuple[ExtraKey, ...] = ()) -> BlockKeys:
    return BlockKeys([t for block in blocks for t in block], extras, len(blocks[0]), hash_function)


def filled(kind: str, *chains: list[list[int]]) -> tuple[BlockPool, PrefixIndex, list[list[int]]]:
    """An index with these chains of two-token blocks, and their block ids."""
    pool = BlockPool(20)
    index: PrefixIndex = INDEXES[kind](pool, 2)
    ids = []
    for chain in chains:
        keys, link, blocks = keys_of(*chain), ROOT, []
        for _ in chain:
            blocks.append(pool.allocate())
            filed = index.insert(link, blocks[-1], keys)
            assert filed is not None
            link = filed[0]
        ids.append(blocks)
    return pool, index, ids


def hits(index: PrefixIndex, *blocks: list[int]) -> list[int]:
    return index.match(keys_of(*blocks), len(blocks))[0]


@BOTH
def test_a_match_is_the_longest_chain_of_whole_blocks(kind: str) -> None:
    _, index, [blocks] = filled(kind, [[1, 1], [2, 2], [3, 3]])
    assert hits(index, [1, 1], [2, 2], [3, 3], [4, 4]) == blocks
    assert index.match(keys_of([1, 1], [2, 2], [3, 3]), 2)[0] == blocks[:2]
    assert hits(index, [1, 1], [2, 9], [3, 3]) == blocks[:1]
    assert hits(index, [2, 2]) == []  # not a beginning


@BOTH
def test_i10_behind_an_evicted_block_nothing_is_found_until_it_is_computed_again(kind: str) -> None:
    pool, index, [blocks] = filled(kind, [[1, 1], [2, 2]])
    index.remove(blocks[0])
    assert hits(index, [1, 1], [2, 2]) == []
    assert hits(index, [2, 2]) == []
    index.check()
    # The same prefix in another block, or in the same block again: what lies behind it is right as it was.
    fresh = pool.allocate()
    index.insert(ROOT, fresh, keys_of([1, 1]))
    assert hits(index, [1, 1], [2, 2]) == [fresh, blocks[1]]
    index.check()


@BOTH
def test_i10_what_hangs_behind_a_block_does_not_hang_behind_its_next_content(kind: str) -> None:
    pool, index, [blocks] = filled(kind, [[1, 1], [2, 2]])
    index.remove(blocks[0])
    pool.release(blocks[0], to_front=True)
    assert pool.allocate() == blocks[0]
    index.insert(ROOT, blocks[0], keys_of([7, 7]))
    assert hits(index, [7, 7], [2, 2]) == [blocks[0]]
    assert hits(index, [1, 1], [2, 2]) == []


@BOTH
def test_a_place_that_nothing_needs_is_gone(kind: str) -> None:
    _, index, [blocks] = filled(kind, [[1, 1], [2, 2], [3, 3]])
    assert index.remove(blocks[1]) == 0  # (3, 3) hangs behind it
    assert index.remove(blocks[2]) == blocks[0]  # the last now
    assert index.is_last(blocks[0])
    assert index.remove(blocks[0]) == 0
    assert len(index) == 0
    index.check()


@BOTH
def test_equal_content_is_indexed_once_and_chains_meet(kind: str) -> None:
    pool, index, [blocks] = filled(kind, [[1, 1], [2, 2]])
    twin, own = pool.allocate(), pool.allocate()
    assert index.insert(ROOT, twin, keys_of([1, 1])) == (Link(blocks[0], 1, 1), False)
    assert twin not in index
    # The twin's next block hangs under the indexed one, so a later request finds both.
    index.insert(Link(blocks[0], 1, 1), own, keys_of([1, 1], [7, 7]))
    assert hits(index, [1, 1], [7, 7]) == [blocks[0], own]


@BOTH
def test_a_chain_is_valid_until_its_last_block_is_removed(kind: str) -> None:
    pool, index, [blocks] = filled(kind, [[1, 1], [2, 2]])
    _, link = index.match(keys_of([1, 1], [2, 2]), 2)
    assert index.is_valid(link)
    index.remove(blocks[1])
    assert not index.is_valid(link)
    assert index.is_valid(ROOT)
    pool.release(blocks[1], to_front=True)
    assert pool.allocate() == blocks[1]
    index.insert(Link(blocks[0], 1, 1), blocks[1], keys_of([1, 1], [8, 8]))
    assert not index.is_valid(link)  # the same block, another content


@BOTH
def test_a_block_that_is_not_indexed_cannot_be_removed(kind: str) -> None:
    _, index, _ = filled(kind, [[1, 1]])
    with pytest.raises(PoolError, match="block 5 is removed from the index, but it is not in it"):
        index.remove(5)


def test_colliding_digests_cost_a_hit_and_nothing_else() -> None:
    pool = BlockPool(20)
    index = HashIndex(pool, 1)
    one, two = (BlockKeys([t], (), 1, lambda data: b"") for t in (1, 2))  # every prefix has the same digest
    first, second = pool.allocate(), pool.allocate()
    index.insert(ROOT, first, one)
    assert index.insert(ROOT, second, two) is None
    assert index.match(one, 1)[0] == [first]
    assert index.match(two, 1)[0] == []
    index.remove(first)
    assert index.insert(ROOT, second, two) == (Link(second, 1, 1), True)
    index.check()


def test_the_short_hash_of_the_fuzz_does_collide() -> None:
    assert len({six_bits(bytes([i])) for i in range(200)}) <= 64


# --- keys -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "other",
    [
        (),
        (ExtraKey("adapter", "x"),),
        (ExtraKey("salt", "y"),),
        (ExtraKey("image", "x"),),
        (ExtraKey("salt", "x"), ExtraKey("adapter", "x")),
        (ExtraKey("salt", "xx"),),
    ],
)
def test_i11_other_extra_keys_share_no_block(kind: str, other: tuple[ExtraKey, ...]) -> None:
    pool, index, _ = filled(kind)
    block = pool.allocate()
    keys = keys_of([1, 2], extras=(ExtraKey("salt", "x"),))
    index.insert(ROOT, block, keys)
    assert index.match(keys, 1)[0] == [block]
    assert index.match(keys_of([1, 2], extras=other), 1)[0] == []


@BOTH
def test_an_image_enters_with_its_first_block_and_tells_all_behind_apart(kind: str) -> None:
    pool, index, _ = filled(kind)

    def prompt(*images: tuple[str, int]) -> BlockKeys:
        """Text, then placeholders from token 3 on, then text."""
        return keys_of([1, 1], [1, 0], [0, 0], [0, 1], [1, 1], extras=tuple(ExtraKey("image", *i) for i in images))

    cat, link, blocks = prompt(("cat", 3)), ROOT, []
    assert [bool(cat.extras_of(i)) for i in range(5)] == [False, True, False, False, False]
    for _ in range(5):
        blocks.append(pool.allocate())
        filed = index.insert(link, blocks[-1], cat)
        assert filed is not None
        link = filed[0]
    assert index.match(prompt(("cat", 3)), 5)[0] == blocks
    for other in [(("dog", 3),), (("cat", 2),), (("cat", 4),), (("cat", 3), ("dog", 3)), ()]:
        assert index.match(prompt(*other), 5)[0] == blocks[:1], "the text before the image is the same"
    assert index.match(prompt(("cat", 3), ("dog", 8)), 5)[0] == blocks[:4]


def test_keys_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="kind 'lora': choose from salt, adapter, image"):
        ExtraKey("lora", "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="image key at token -1: an image starts at the first of its tokens"):
        ExtraKey("image", "x", -1)
    with pytest.raises(ValueError, match=r"salt key at token 3: .* anything else at 0"):
        ExtraKey("salt", "x", 3)
    for value in (5, b"x", None, "\ud800"):
        with pytest.raises(ValueError, match="adapter key of value"):
            ExtraKey("adapter", value)  # type: ignore[arg-type]
    for start in (0.5, True, "1"):
        with pytest.raises(ValueError, match="give a whole number"):
            ExtraKey("image", "x", start)  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_tokens_packed_ahead_are_those_packed_alone(ahead: int) -> None:
    ids = list(range(11))
    keys = BlockKeys(ids, (), 3, digest128)
    alone = [BlockKeys(ids, (), 3, digest128).key(i) for i in range(3)]
    assert [keys.key(i, ahead) for i in range(3)] == alone
    assert keys.run(1, 2) == alone[1] + alone[2]
    assert keys.digest(2) == digest128(digest128(digest128(alone[0]) + alone[1]) + alone[2])


# --- damage -----------------------------------------------------------------------------------------------


def test_check_finds_damage_of_the_hash_index() -> None:
    def damaged() -> HashIndex:
        _, index, _ = filled("hash", [[1, 1], [2, 2]])
        assert isinstance(index, HashIndex)
        index.check()
        return index

    for damage, words in [
        (lambda i: i._blocks.__setitem__(1, 9), "names block 9"),
        (lambda i: i._children.__setitem__(1, 2), "numbers of those below"),
        (lambda i: (i._blocks.__setitem__(2, 0), i._position_at.__setitem__(2, 0)), "has no block"),
        (lambda i: setattr(i, "_count", 3), "3 blocks are counted"),
        (lambda i: i._position_of.clear(), "0 digests do not lead to the 2"),
    ]:
        index = damaged()
        damage(index)
        with pytest.raises(PoolError, match=words):
            index.check()


def test_check_finds_damage_of_the_radix_tree() -> None:
    def only(index):  # type: ignore[no-untyped-def]
        [node] = index._root.children.values()
        return node

    for damage, words in [
        (lambda i: setattr(only(i), "start", 1), "hangs below one that ends elsewhere"),
        (lambda i: only(i).tokens.__setitem__(0, 9), "under the key of another"),
        (lambda i: only(i).tokens.pop(), "other tokens than theirs"),
        (lambda i: only(i).blocks.__setitem__(1, 0), "ends with a position that has no block"),
        (lambda i: only(i).blocks.__setitem__(0, 9), "block 9 is filed"),
        (lambda i: i._depth_at.__setitem__(1, 1), "block 1 is filed at"),
        (lambda i: setattr(i, "_count", 3), "3 are counted"),
    ]:
        _, index, _ = filled("radix", [[1, 1], [2, 2]])
        index.check()
        damage(index)
        with pytest.raises(PoolError, match=words):
            index.check()
