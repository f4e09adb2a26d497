"""Faults in requests, scheduler and engine loop: the audited fuzz kills them."""

from __future__ import annotations

from mutation import Edit

from minillm.core import engine as engine_module
from minillm.core.blocks import BlockPool
from minillm.core.builder import PlanBuilder
from minillm.core.commit import Committer
from minillm.core.kv.block_keys import BlockKeys
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv_manager import KVManager
from minillm.core.lifecycle import Lifecycle
from minillm.core.policies.waiting import WaitingQueue
from minillm.core.scheduler import Scheduler

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

ENGINE_MUTANTS: dict[str, list[Edit]] = {
    "old key kept on reuse": [Edit(CacheGroup, "forget", "self.index.remove(block)", "0")],
    "unchained hash": [UNCHAINED, *NO_PARENT],
    "short hash without verification": [*NO_PARENT, *NO_TOKENS, *NO_EXTRAS],
    "tokens not compared": NO_TOKENS,
    "full-prompt hit": [Edit(KVManager, "lookup", "(request.num_known - 1)", "request.num_known")],
    "one block too few": [Edit(CacheGroup, "missing", "-(-num_tokens //", "-(-(num_tokens - 1) //")],
    "one block too many": [Edit(CacheGroup, "missing", "-(-num_tokens //", "-(-(num_tokens + 1) //")],
    "hit not held": [Edit(CacheGroup, "start", "self._pool.touch(block)", "pass")],
    "revived blocks counted as free": [Edit(CacheGroup, "needed", "len(found) + revived", "len(found)")],
    "part of a block indexed": [
        Edit(CacheGroup, "commit", "num_computed_tokens // self.block_size", "num_computed_tokens")
    ],
    "released to the wrong count": [Edit(BlockPool, "release", "self.ref_counts[block] -= 1", "pass")],
    "progress kept when preempted": [Edit(Scheduler, "_preempt_one", "request.num_computed_tokens = 0", "pass")],
    "tokens in flight kept when preempted": [Edit(Scheduler, "_preempt_one", "request.num_in_flight = 0", "pass")],
    "epoch kept when preempted": [Edit(Scheduler, "_preempt_one", "request.epoch += 1", "pass")],
    "epoch kept when ended": [Edit(Scheduler, "_take_out", "request.epoch += 1", "pass")],
    "epoch kept when aborted": [Edit(Lifecycle, "_end_when_it_lands", "request.epoch += 1", "pass")],
    "stale decode committed": [Edit(Committer, "_commit_decodes", "request.epoch != epoch", "False")],
    "stale chunk committed": [Edit(Committer, "commit", "request.epoch != part.epoch", "False")],
    "abort forgotten when the step lands": [Edit(Committer, "_drop_result", "request.abort_requested", "False")],
    "victim keeps its part": [Edit(Scheduler, "_preempt_one", "decided.parts.pop(request.request_id, None)", "pass")],
    "victim keeps its row": [Edit(Scheduler, "_preempt_one", "if request in decided.decodes", "if False")],
    "swapped, it forgets what is computed": [
        Edit(Scheduler, "_preempt_one", "request.num_swaps += 1", "request.num_computed_tokens = 0")
    ],
    "swapped although the host is full": [
        Edit(Scheduler, "_preempt_one", "self._kv.swap.swap_out(request)", "(self._kv.swap.swap_out(request) or True)")
    ],
    "swapped in by a step that preempted": [Edit(Scheduler, "_swap_in", "and not decided.preempted", "")],
    "swapped in and not told": [Edit(Scheduler, "_swap_in", "self.swapped.remove(request)", "pass")],
    "admission while someone is swapped out": [
        Edit(Scheduler, "_admit_waiting", "if first_swapped is not None and not", "if False and not")
    ],
    "admission after preemption": [Edit(Scheduler, "_admit_waiting", "if not all(", "if False and all(")],
    "oldest preempted first": [Edit(Scheduler, "_make_room", "max(self.running", "min(self.running")],
    "preempting itself, it runs all the same": [
        Edit(Scheduler, "_make_room", "return False", "return self._kv.admit(request, self._kv.lookup(request))")
    ],
    "sampled within a prompt": [Edit(PlanBuilder, "_add_parts", "end == request.num_known", "True")],
    "reads past the chunk": [
        Edit(PlanBuilder, "_add_parts", "seq_lens.append(end)", "seq_lens.append(max(end, request.num_known))")
    ],
    "reads short of the decode": [
        Edit(PlanBuilder, "_add_decodes", "request.num_in_flight for request", "request.num_in_flight - 1 for request")
    ],
    "a draw of the output before": [
        Edit(PlanBuilder, "_add_decodes", "context - request.num_prompt", "context - request.num_prompt - 1")
    ],
    "planned past the longest output": [
        Edit(Scheduler, "_schedule_decodes", "start + 1 >= request.max_total_tokens or ", "")
    ],
    "the last token fed twice": [
        Edit(PlanBuilder, "_add_input", "plan.token_ids.append(0)", "plan.token_ids.append(request.token_ids[-1])"),
        Edit(PlanBuilder, "_add_input", "plan.drawn[len(plan.token_ids)] = request.last_draw", "pass"),
    ],
    "another row's draw": [Edit(PlanBuilder, "_add_input", "request.last_draw", "0")],
    "shaped by draws not known": [Edit(Scheduler, "_schedule_decodes", "or not request.is_plain", "")],
    "waiting for a draw, it leaves its place": [
        Edit(Scheduler, "_has_place", "len(self.running) - given_back", "len(self.running) // 2")
    ],
    "plans in flight see the table shrink": [
        Edit(CacheGroup, "_drop", "table.blocks = table.blocks[:keep]", "del table.blocks[keep:]")
    ],
    "indexed one decode late": [
        Edit(Committer, "_commit_decodes", "num_computed_tokens % size == 0", "num_computed_tokens % size == 1")
    ],
    "cached tokens cost budget": [
        Edit(Scheduler, "_admit_waiting", "one.num_known - one.num_computed_tokens", "one.num_known")
    ],
    "queue ignores order": [
        Edit(WaitingQueue, "push", "_Entry(self._order.rank(request)", "_Entry((-request.index,)")
    ],
    "one request more than may run": [
        Edit(Scheduler, "_has_place", "min(self._config.max_running", "1 + min(self._config.max_running")
    ],
    "decodes cost no budget": [
        Edit(Scheduler, "_schedule_decodes", "max_batch_tokens - len(decided.decodes)", "max_batch_tokens")
    ],
    "prompts before decodes": [Edit(Scheduler, "_schedule_others", "decodes + prompts", "prompts + decodes")],
    "a token computed once and counted twice": [
        Edit(Committer, "_commit_decodes", "request.num_computed_tokens += 1", "request.num_computed_tokens += 2")
    ],
    "preempted and not queued again": [Edit(Scheduler, "_preempt_one", "self.add(request)", "pass")],
    "taken though it can never fit": [
        Edit(engine_module, "check_room", "max_total_tokens - 1)", "num_prompt - 1)")
    ],
    "ended and its blocks kept": [Edit(Scheduler, "_take_out", "self._kv.release(request)", "pass")],
    "ended once for each step in flight": [Edit(Committer, "_drop_result", " and not request.is_finished", "")],
    "an abort that nobody is told of": [
        Edit(Lifecycle, "_abort", 'self.outbox.append(self.end(request, "abort", self._clock()))',
             'self.end(request, "abort", self._clock())')
    ],
}  # fmt: skip
