"""Faults planted in the core, each of which the audited fuzz must find: a fuzz that finds nothing proves nothing."""

from __future__ import annotations

import inspect
import random
import sys
import textwrap
from typing import Any, NamedTuple

import pytest
from core_harness import drive, random_case
from kv_callers import random_calls

from minillm.backends.hash_model import WrongReadError
from minillm.core.blocks import BlockPool, PoolError
from minillm.core.engine import EngineError
from minillm.core.kv_manager import KVManager
from minillm.core.prefix import PrefixIndex
from minillm.core.scheduler import Scheduler
from minillm.core.swap import HostBlocks
from minillm.core.waiting import WaitingQueue


class Edit(NamedTuple):
    """In the source of one method, ``old`` becomes ``new``: a mutant of today's code, never of a copy."""

    owner: type
    method: str
    old: str
    new: str


UNCHAINED = [
    Edit(PrefixIndex, "match", "self._hash(link.digest + tokens)", "self._hash(tokens)"),
    Edit(PrefixIndex, "insert", "self._hash(parent.digest + tokens)", "self._hash(tokens)"),
]
NO_PARENT = Edit(PrefixIndex, "_holds", "entry.parent == parent.block", "True")
NO_PARENT_EPOCH = Edit(PrefixIndex, "_holds", "entry.parent_epoch == parent.epoch", "True")
NO_TOKENS = Edit(PrefixIndex, "_holds", "entry.tokens == tokens", "True")
NO_EXTRAS = Edit(PrefixIndex, "_holds", "entry.extras == extras", "True")

MUTANTS: dict[str, list[Edit]] = {
    "old key kept on reuse": [Edit(KVManager, "_allocate", "self.index.remove(block)", "pass")],
    "unchained hash": [*UNCHAINED, NO_PARENT, NO_PARENT_EPOCH],
    "short hash without verification": [NO_PARENT, NO_PARENT_EPOCH, NO_TOKENS, NO_EXTRAS],
    "tokens not compared": [NO_TOKENS],
    "full-prompt hit": [Edit(KVManager, "lookup", "(request.num_known - 1)", "request.num_known")],
    "one block too few": [Edit(KVManager, "reserve", "-(-num_tokens //", "-(-(num_tokens - 1) //")],
    "one block too many": [Edit(KVManager, "reserve", "-(-num_tokens //", "-(-(num_tokens + 1) //")],
    "hit not held": [Edit(KVManager, "admit", "self.pool.touch(block)", "pass")],
    "revived blocks counted as free": [Edit(KVManager, "shortage", "pool.num_free - revived", "pool.num_free")],
    "part of a block indexed": [Edit(KVManager, "commit", "num_computed // self.block_size", "num_computed")],
    "released to the wrong count": [Edit(BlockPool, "release", "self.ref_counts[block] -= 1", "pass")],
    "progress kept when preempted": [Edit(Scheduler, "_preempt_one", "request.num_computed = 0", "pass")],
    "admission after preemption": [Edit(Scheduler, "_admit_waiting", "if not all(", "if False and all(")],
    "oldest preempted first": [Edit(Scheduler, "_schedule_running", "max(self.running", "min(self.running")],
    "sampled within a prompt": [Edit(Scheduler, "_plan", "end == request.num_known", "True")],
    "reads past the chunk": [
        Edit(Scheduler, "_plan", "context_lengths.append(end)", "context_lengths.append(request.num_known)")
    ],
    "cached tokens cost budget": [
        Edit(Scheduler, "_admit_waiting", "one.num_known - one.num_computed", "one.num_known")
    ],
    "queue ignores order": [
        Edit(WaitingQueue, "push", "_Entry(self._order.rank(request)", "_Entry((-request.index,)")
    ],
}  # fmt: skip

# Killed by random callers of the manager, for the engine's requests do not do all that it offers.
MANAGER_MUTANTS: dict[str, list[Edit]] = {
    "shared block written": [Edit(KVManager, "reserve", "ref_counts[table[written]] > 1", "ref_counts[0] > 1")],
    "copy not counted": [Edit(KVManager, "reserve", "missing + is_shared > ", "missing > ")],
    "copied though held alone": [Edit(KVManager, "reserve", "ref_counts[table[written]] > 1", "ref_counts[0] < 1")],
    "copied block kept": [Edit(KVManager, "reserve", "self.pool.release(source, to_front=False)", "pass")],
    "copy not recorded": [Edit(KVManager, "reserve", "self._copies.append((source, target))", "pass")],
    "copy the wrong way": [Edit(KVManager, "reserve", "append((source, target))", "append((target, source))")],
    "fork not counted": [Edit(KVManager, "fork", "self.pool.touch(block)", "pass")],
    "fork shares what is in flight": [
        Edit(KVManager, "fork", "table.blocks[: self.blocks_for(parent.num_computed)]", "list(table.blocks)")
    ],
    "swapped blocks not copied": [Edit(KVManager, "swap_out", "self._copies += copies", "pass")],
    "last block not swapped": [
        Edit(KVManager, "swap_out", "for b in table.blocks[:", "for b in table.blocks[: -1 +")
    ],
    "host block shared that still fills up": [
        Edit(HostBlocks, "store", "if i < num_full:  # a", "if True:  # a"),
        Edit(HostBlocks, "store", "contents[:num_full]]", "contents]"),
        Edit(HostBlocks, "store", "known[i] if i < num_full else None", "known[i]"),
    ],
    "host room counted twice": [
        Edit(HostBlocks, "store", "len(contents) - sum(host is not None for host in known) > ", "len(contents) > ")
    ],
    "host blocks kept when back": [Edit(KVManager, "swap_in", "self.host.release(swapped.hosts)", "pass")],
    "host blocks of the dead kept": [Edit(KVManager, "release", "self.host.release(swapped.hosts)", "pass")],
    "block of a later epoch joins": [
        Edit(KVManager, "_still_there", "self.pool.epochs[twin.block] != twin.epoch", "False")
    ],
    "free block joins uncached": [Edit(KVManager, "_still_there", " if self.pool.ref_counts[twin.block]", " if True")],
    "joining block not held": [Edit(KVManager, "swap_in", "pool.touch(block)", "pass")],
    "joining blocks counted as free": [Edit(KVManager, "swap_in", "pool.num_free - revived", "pool.num_free")],
    "swapped in without room": [Edit(KVManager, "swap_in", "self.blocks_for(request.num_known)", "len(swapped.hosts)")],
    "twin of a freed host block kept": [Edit(HostBlocks, "release", "self._forget_twin(host)", "pass")],
    "copy of a copy": [Edit(KVManager, "take_copies", "sources.get(source, source)", "source")],
    "copies taken twice": [Edit(KVManager, "take_copies", "self._copies.clear()", "pass")],
}  # fmt: skip


def mutate(monkeypatch: pytest.MonkeyPatch, edits: list[Edit]) -> None:
    for owner, method in dict.fromkeys((edit.owner, edit.method) for edit in edits):
        function = getattr(owner, method)
        source = textwrap.dedent(inspect.getsource(function))
        for edit in edits:
            if (edit.owner, edit.method) == (owner, method):
                assert source.count(edit.old) == 1, f"{method} has {source.count(edit.old)} times {edit.old!r}"
                source = source.replace(edit.old, edit.new)
        scope: dict[str, Any] = dict(vars(sys.modules[function.__module__]))
        exec("from __future__ import annotations\n" + source, scope)  # noqa: S102
        monkeypatch.setattr(owner, method, scope[method])


def fuzz(seeds: range) -> None:
    for seed in seeds:
        drive(random_case(random.Random(seed)))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_fuzz_kills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(range(10))  # the unchanged code, so that a kill is the mutant's doing
    mutate(monkeypatch, MUTANTS[name])
    # Only a violated invariant or a wrong token is a kill; a NameError would be a fault of the mutant.
    with pytest.raises((AssertionError, PoolError, EngineError, WrongReadError, IndexError)):
        fuzz(range(2000))


@pytest.mark.parametrize("name", MANAGER_MUTANTS)
def test_the_random_callers_kill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, MANAGER_MUTANTS[name])
    with pytest.raises((AssertionError, PoolError, WrongReadError, IndexError)):
        random_calls(range(2000))
