"""Faults planted in the core, each of which the audited fuzz must find: a fuzz that finds nothing proves nothing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import output_cases
import pytest
from adversaries import DRAFTERS
from core_harness import drive, random_case
from enumeration import check_certain, check_rule
from evictor_callers import random_evictions
from index_callers import random_index_calls
from kv_callers import random_calls
from mutation import Edit, mutate
from sampling_mutants import DRAW_MUTANTS, OUTPUT_MUTANTS, SAMPLING_MUTANTS
from sampling_reference import random_samplings

from minillm.backends.hash_model import WrongReadError
from minillm.core import draws
from minillm.core import engine as engine_module
from minillm.core.block_keys import BlockKeys, ExtraKey
from minillm.core.blocks import BlockPool, PoolError
from minillm.core.engine import Engine, EngineError
from minillm.core.eviction import PriorityEvictor
from minillm.core.kv_events import BlockEvents, PrefixReplica
from minillm.core.kv_manager import KVManager
from minillm.core.prefix import HashIndex
from minillm.core.radix import RadixIndex
from minillm.core.scheduler import Scheduler
from minillm.core.speculate import rejection, speculator
from minillm.core.speculate.draft_model import DraftModel
from minillm.core.speculate.draft_tree import DraftTree
from minillm.core.speculate.speculator import Speculator
from minillm.core.swap import HostBlocks
from minillm.core.tables import BlockCopies
from minillm.core.waiting import WaitingQueue

UNCHAINED = Edit(BlockKeys, "digest", "self._hash(before + (", "self._hash((")
NO_PARENT = [
    Edit(HashIndex, method, "self._parents[position] != above or ", "") for method in ("match", "insert")
]  # fmt: skip
NO_TOKENS = [
    Edit(HashIndex, "_has_key", "self._tokens[position * width : (position + 1) * width] == key and", "True and"),
    Edit(HashIndex, "_has_key", "self._tokens[position * width : (position + 1) * width] == key[:width]", "True"),
]
NO_EXTRAS = [
    Edit(HashIndex, "_has_key", "position not in self._extras", "True"),
    Edit(HashIndex, "_has_key", "and self._extras.get(position) == key[width:]", ""),
]

MUTANTS: dict[str, list[Edit]] = {
    "old key kept on reuse": [Edit(KVManager, "_allocate", "self.index.remove(block)", "0")],
    "unchained hash": [UNCHAINED, *NO_PARENT],
    "short hash without verification": [*NO_PARENT, *NO_TOKENS, *NO_EXTRAS],
    "tokens not compared": NO_TOKENS,
    "full-prompt hit": [Edit(KVManager, "lookup", "(request.num_known - 1)", "request.num_known")],
    "one block too few": [Edit(KVManager, "reserve", "-(-num_tokens //", "-(-(num_tokens - 1) //")],
    "one block too many": [Edit(KVManager, "reserve", "-(-num_tokens //", "-(-(num_tokens + 1) //")],
    "hit not held": [Edit(KVManager, "admit", "self.pool.touch(block)", "pass")],
    "revived blocks counted as free": [Edit(KVManager, "shortage", "pool.num_free - revived", "pool.num_free")],
    "part of a block indexed": [Edit(KVManager, "commit", "num_computed // self.block_size", "num_computed")],
    "released to the wrong count": [Edit(BlockPool, "release", "self.ref_counts[block] -= 1", "pass")],
    "progress kept when preempted": [Edit(Scheduler, "_preempt_one", "request.num_computed = 0", "pass")],
    "tokens in flight kept when preempted": [Edit(Scheduler, "_preempt_one", "request.num_in_flight = 0", "pass")],
    "epoch kept when preempted": [Edit(Scheduler, "_preempt_one", "request.epoch += 1", "pass")],
    "epoch kept when ended": [Edit(Scheduler, "_take_out", "request.epoch += 1", "pass")],
    "epoch kept when aborted": [Edit(Engine, "_end_when_it_lands", "request.epoch += 1", "pass")],
    "stale decode committed": [Edit(Engine, "_commit_decodes", "request.epoch != epoch", "False")],
    "stale chunk committed": [Edit(Engine, "commit_step", "request.epoch != part.epoch", "False")],
    "abort forgotten when the step lands": [Edit(Engine, "_drop_result", "request.abort_requested", "False")],
    "victim keeps its part": [Edit(Scheduler, "_preempt_one", "draft.parts.pop(request.request_id, None)", "pass")],
    "victim keeps its row": [Edit(Scheduler, "_preempt_one", "if request in draft.decodes", "if False")],
    "victim leaves its slot": [Edit(Scheduler, "_preempt_one", "draft.plan.positions, draft.plan.slots,", "")],
    "swapped, it forgets what is computed": [
        Edit(Scheduler, "_preempt_one", "request.num_swaps += 1", "request.num_computed = 0")
    ],
    "swapped although the host is full": [
        Edit(Scheduler, "_preempt_one", "self._kv.swap_out(request)", "(self._kv.swap_out(request) or True)")
    ],
    "swapped in by a step that preempted": [Edit(Scheduler, "_swap_in", "and not draft.preempted", "")],
    "swapped in and not told": [Edit(Scheduler, "_swap_in", "self.swapped.remove(request)", "pass")],
    "admission while someone is swapped out": [
        Edit(Scheduler, "_admit_waiting", "if first_swapped is not None and not", "if False and not")
    ],
    "admission after preemption": [Edit(Scheduler, "_admit_waiting", "if not all(", "if False and all(")],
    "oldest preempted first": [Edit(Scheduler, "_make_room", "max(self.running", "min(self.running")],
    "preempting itself, it runs all the same": [
        Edit(Scheduler, "_make_room", "return False", "return self._kv.admit(request, self._kv.lookup(request))")
    ],
    "sampled within a prompt": [Edit(Scheduler, "_fill_parts", "end == request.num_known", "True")],
    "reads past the chunk": [
        Edit(Scheduler, "_fill_parts", "lengths.append(end)", "lengths.append(max(end, request.num_known))")
    ],
    "reads short of the decode": [Edit(Scheduler, "_fill_decodes", "[position + 1 for", "[position for")],
    "a draw of the output before": [
        Edit(Scheduler, "_fill_decodes", "context - request.num_prompt", "context - request.num_prompt - 1")
    ],
    "planned past the longest output": [
        Edit(Scheduler, "_schedule_decodes", "start + 1 >= request.max_total_tokens or ", "")
    ],
    "the last token fed twice": [
        Edit(Scheduler, "_add_input", "plan.token_ids.append(0)", "plan.token_ids.append(request.token_ids[-1])"),
        Edit(Scheduler, "_add_input", "plan.drawn[len(plan.token_ids)] = request.last_draw", "pass"),
    ],
    "another row's draw": [Edit(Scheduler, "_add_input", "request.last_draw", "0")],
    "shaped by draws not known": [Edit(Scheduler, "_schedule_decodes", "or not request.is_plain", "")],
    "waiting for a draw, it leaves its place": [
        Edit(Scheduler, "_has_place", "len(self.running) - given_back", "len(self.running) // 2")
    ],
    "plans in flight see the table shrink": [
        Edit(KVManager, "_drop", "table.blocks = table.blocks[:keep]", "del table.blocks[keep:]")
    ],
    "indexed one decode late": [
        Edit(Engine, "_commit_decodes", "request.num_computed % size == 0", "request.num_computed % size == 1")
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
    "copy not recorded": [Edit(KVManager, "reserve", "self._copies.add(source, target)", "pass")],
    "copy the wrong way": [Edit(KVManager, "reserve", "add(source, target)", "add(target, source)")],
    "fork not counted": [Edit(KVManager, "fork", "self.pool.touch(block)", "pass")],
    "fork shares what is in flight": [
        Edit(KVManager, "fork", "table.blocks[: self.blocks_for(parent.num_computed)]", "list(table.blocks)")
    ],
    "swapped blocks not copied": [Edit(KVManager, "swap_out", "self._copies.add(source, target)", "pass")],
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
    "copy of a copy": [Edit(BlockCopies, "take", "sources.get(source, source)", "source")],
    "copies taken twice": [Edit(BlockCopies, "take", "self._pairs.clear()", "pass")],
    "kinds of keys untagged": [Edit(ExtraKey, "encoded", "self.kind.encode(), ", "")],
    "place of an image forgotten": [Edit(ExtraKey, "encoded", ", str(self.start - first).encode()", "")],
    "extra keys left out": [Edit(BlockKeys, "key", " + self.extras_of(block)", "")],
    "image left out": [Edit(BlockKeys, "extras_of", "first <= extra.start", "first == extra.start")],
    "chain behind a lost block goes on": [Edit(KVManager, "commit", "not self.index.is_valid(chain)", "False")],
    "removal not told": [Edit(BlockEvents, "on_remove", "self._tell(", "str(")],
    "parent's digest told": [Edit(BlockEvents, "on_index", "self.number, keys.digest(place)", "self.number, parent")],
    "router counts blocks behind a gap": [
        Edit(PrefixReplica, "cached_tokens", "and keys.digest(cached) in self._digests", "and self._digests")
    ],
    "evicted block keeps its place": [Edit(KVManager, "_allocate", "self.index.remove(block)", "0")],
}  # fmt: skip

# Killed by random callers of an index, against a dictionary of prefixes.
INDEX_MUTANTS: dict[str, list[Edit]] = {
    "hit on a place without a block": [Edit(HashIndex, "match", "if block == NULL_BLOCK", "if block < NULL_BLOCK")],
    "lost chain taken for whole": [Edit(HashIndex, "is_valid", "self._epochs[link.block] == link.epoch", "True")],
    "twin indexed over the first": [Edit(HashIndex, "insert", "if held != NULL_BLOCK", "if held < NULL_BLOCK")],
    "place dropped with others below": [Edit(HashIndex, "remove", " and not self._children[position]", "")],
    "place without use kept": [Edit(HashIndex, "remove", "while position != _ROOT", "while position == -2")],
    "places below not counted": [Edit(HashIndex, "remove", "self._children[above] -= 1", "pass")],
    "last block not reported": [Edit(HashIndex, "remove", "return self._blocks[above]", "return NULL_BLOCK")],
    "keys of a former place kept": [Edit(HashIndex, "_drop_position", "self._extras.pop(position, None)", "pass")],
    "run ends late": [Edit(RadixIndex, "_common", "min(len(node.blocks), limit)", "len(node.blocks)")],
    "run not compared": [Edit(RadixIndex, "_common", " and self._is(node, same, keys.key(first + same))", "")],
    "extra keys within a run": [Edit(RadixIndex, "_common", "not keys.has_extras and ", "")],
    "run goes on behind a lost block": [Edit(RadixIndex, "match", "if NULL_BLOCK in run", "if not run")],
    "walk goes on from within a run": [Edit(RadixIndex, "match", "if len(run) < len(child.blocks)", "if not run")],
    "split loses what hangs below": [
        Edit(RadixIndex, "_split", "= node.blocks[offset:], node.children", "= node.blocks[offset:], None")
    ],
    "split leaves blocks behind": [Edit(RadixIndex, "_split", "self._node_at[block] = lower", "pass")],
    "split cuts tokens only": [Edit(RadixIndex, "_split", ", node.blocks[offset:]\n", "\n")],
    "extra keys in the middle of a run": [Edit(RadixIndex, "_place", " or len(key) > self._width:", ":")],
    "run trimmed without its tokens": [
        Edit(RadixIndex, "_trim", "del node.tokens[len(node.blocks) * self._width :]", "pass")
    ],
    "run with others below is last": [Edit(RadixIndex, "is_last", "not node.children and ", "")],
}  # fmt: skip

# Killed by random callers of an evictor, against a list sorted anew each time.
EVICTION_MUTANTS: dict[str, list[Edit]] = {
    "clock stands still": [Edit(PriorityEvictor, "pop", "self._clock = entry[0]", "pass")],
    "hits not counted": [Edit(PriorityEvictor, "on_hit", "self._uses[block] += 1", "pass")],
    "uses of a former content": [Edit(PriorityEvictor, "on_index", "self._uses[block] = 1", "self._uses[block] += 1")],
    "cost of every block the same": [Edit(PriorityEvictor, "on_index", "self._cost(place)", "1.0")],
    "block evicted before those behind it": [Edit(PriorityEvictor, "pop", "not self._is_last(block)", "False")],
    "held block evicted": [Edit(PriorityEvictor, "pop", "self._live.get(block) is not entry", "False")],
    "last block forgotten": [Edit(PriorityEvictor, "on_last", "heapq.heappush(self._heap, self._live[block])", "pass")],
    "ties by number": [Edit(PriorityEvictor, "add", "(priority, self._count, block)", "(priority, block, block)")],
}  # fmt: skip

# Killed by workloads that all draft.
PATH_COPIED = Edit(Engine, "_keep_accepted", "(first + node, first + i) for", "(first + i, first + node) for")
SPECULATION_MUTANTS: dict[str, list[Edit]] = {
    "last draw dropped": [Edit(engine_module, "draws_that_count", "[0, *(1 + n for n in path)]", "[0, *path[1:]]")],
    "draws of a chain": [Edit(engine_module, "draws_that_count", "(1 + n for n in path)", "range(1, len(path) + 1)")],
    "accepted unseen": [Edit(speculator, "accepted_path", "and token_id == draws[1 + node]", "")],
    "compared with the draw after it": [Edit(speculator, "accepted_path", "draws[1 + node]", "draws[1 + candidate]")],
    "tree walked as a chain": [Edit(speculator, "accepted_path", "draft.parent(candidate) == node and ", "")],
    "committed past the stop": [Edit(engine_module, "commit_tokens", "break", "pass")],
    "rewound one too far": [Edit(Engine, "_keep_accepted", "kv.rewind(request, ", "kv.rewind(request, -1 + ")],
    "rewound one too little": [Edit(Engine, "_keep_accepted", "kv.rewind(request, ", "kv.rewind(request, 1 + ")],
    "drafts indexed": [
        Edit(Engine, "_keep_accepted", "request.num_known - 1", "min(request.num_known, part.start + part.num_draws)")
    ],
    "newest token taken for computed": [Edit(Engine, "_keep_accepted", "request.num_known - 1", "request.num_known")],
    "accepted path left in its places": [Edit(Engine, "_keep_accepted", "if places:", "if False:")],
    "path copied the wrong way": [PATH_COPIED],
    "drafted beyond max_tokens": [Edit(Speculator, "_ask", "- known - 1", "- known")],
    "one number for all draws of a step": [Edit(draws, "_add_draw", "num_output + ahead", "num_output")],
    "drafts shaped by what is known alone": [Edit(speculator, "transform_for", ", *ahead]", "]")],
    "ends banned by what is known alone": [Edit(speculator, "transform_for", "num_output + len(ahead)", "num_output")],
    "drafts over the budget": [Edit(Speculator, "draft", "budget -= ask.max_tokens", "pass")],
    "slots not reserved": [Edit(Speculator, "_ask", "reserve(request, known + num_tokens)", "reserve(request, known)")],
    "draft behind tokens not computed": [
        Edit(Speculator, "_may_draft", "part.start != part.request.num_known - 1", "part.request.num_output == 0")
    ],
    "slots kept that no draft took": [
        Edit(Speculator, "draft", "self._kv.rewind(request, request.num_known + len(draft.token_ids))", "pass")
    ],
    "tree at the positions of a chain": [
        Edit(Speculator, "extend", "first + depth for depth in depths(draft.parents)", "places")
    ],
    "tree attended to as a chain": [Edit(Speculator, "extend", "plan.trees[len(plan.request_ids) - 1]", "_")],
}  # fmt: skip

# Killed by workloads on draft models.
DRAFT_MODEL_MUTANTS: dict[str, list[Edit]] = {
    "draft cache not rewound": [Edit(DraftModel, "num_cached", "ask.num_accepted)", "99 + ask.num_accepted)")],
    "draft cache trusted after preemption": [Edit(DraftModel, "num_cached", "cached.epoch != request.epoch", "False")],
    "branches taken for cached": [Edit(DraftTree, "propose", "0 if tree.tokens", "len(tree.run) if tree.tokens")],
}  # fmt: skip
MODELS = ("draft model", "near model", "draft tree", "near tree")

# Killed by enumeration.
RULE_MUTANTS: dict[str, list[Edit]] = {
    "residual not scaled": [Edit(rejection, "draw_against", "draw * mass", "draw")],
    "residual is the target": [
        Edit(rejection, "draw_against", "max(0.0, probability - (0.0 if q is None else q[token_id]))", "probability")
    ],
    "residual keeps the drafted token": [Edit(rejection, "draw_against", "if token_id != drafted", "if True")],
    "kept whatever the proposal": [Edit(rejection, "draw_against", "1.0 if q is None else q[drafted]", "1.0")],
    "always kept": [Edit(rejection, "draw_against", "proposal.coin * certainty", "0.0")],
    "one number for coin and draw": [Edit(rejection, "draw_against", "proposal.coin *", "draw *")],
}  # fmt: skip


def fuzz(seeds: range) -> None:
    for seed in seeds:
        drive(random_case(random.Random(seed)))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_fuzz_kills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(range(10))  # the unchanged code, so that a kill is the mutant's doing
    mutate(monkeypatch, MUTANTS[name])
    # Only a violated invariant or a wrong token is a kill; a NameError would be a fault of the mutant.
    with pytest.raises((AssertionError, PoolError, EngineError, WrongReadError, IndexError, KeyError, ValueError)):
        fuzz(range(2000))


def drafting_fuzz(seeds: range, drafters: Sequence[str] = tuple(DRAFTERS)) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drive(replace(random_case(rng), drafter=rng.choice(drafters)))


@pytest.mark.parametrize("name", SPECULATION_MUTANTS)
def test_the_drafting_fuzz_kills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafting_fuzz(range(10))
    mutate(monkeypatch, SPECULATION_MUTANTS[name])
    with pytest.raises((AssertionError, PoolError, EngineError, WrongReadError, IndexError)):
        drafting_fuzz(range(2000))


@pytest.mark.parametrize("name", DRAFT_MODEL_MUTANTS)
def test_the_fuzz_of_draft_models_kills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafting_fuzz(range(10), MODELS)
    mutate(monkeypatch, DRAFT_MODEL_MUTANTS[name])
    with pytest.raises((AssertionError, PoolError, EngineError, WrongReadError, IndexError)):
        drafting_fuzz(range(3000), MODELS)


@pytest.mark.parametrize("name", RULE_MUTANTS)
def test_the_enumeration_kills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [((1, 2, 1, 0, 0), (3, 1, 0, 0, 0)), ((0, 1, 3, 0, 0), (1, 1, 1, 1, 0)), ((2, 0, 0, 1, 1), (1, 0, 3, 0, 0))]
    for check in (True, False):
        if not check:
            mutate(monkeypatch, RULE_MUTANTS[name])
        with contextlib.nullcontext() if check else pytest.raises(AssertionError):
            for p, q in pairs:
                check_rule(p, q)
                check_certain(p, 1)


def output_fuzz(seeds: range) -> None:
    for seed in seeds:
        drive(output_cases.random_case(random.Random(seed)))


KILLERS: dict[str, tuple[dict[str, list[Edit]], Callable[[], None]]] = {
    "manager": (MANAGER_MUTANTS, lambda: random_calls(range(2000))),
    "index": (INDEX_MUTANTS, lambda: random_index_calls(range(500))),
    "draws": (DRAW_MUTANTS, lambda: fuzz(range(2000))),
    "outputs": (OUTPUT_MUTANTS, lambda: output_fuzz(range(2000))),
    "samplings": (SAMPLING_MUTANTS, lambda: random_samplings(range(2000))),
    "evictor": (EVICTION_MUTANTS, lambda: random_evictions(range(500))),
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, (table, _) in KILLERS.items() for name in table])
def test_the_random_callers_kill(part: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, calls = KILLERS[part]
    mutate(monkeypatch, table[name])
    with pytest.raises((AssertionError, EngineError, PoolError, WrongReadError, IndexError, KeyError)):
        calls()
