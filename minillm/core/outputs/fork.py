"""One output of a prompt goes on from another: it shares the blocks, and copies one only to write into it."""

from __future__ import annotations

from minillm.core.kv_manager import KVManager
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler


def fork(parent: Request, child: Request, kv: KVManager, scheduler: Scheduler) -> None:
    """Let ``child``, which is ``PENDING``, go on from all that ``parent``, which runs, knows."""
    child.token_ids = parent.token_ids.copy()
    child.logprobs = parent.logprobs.copy()
    child.grammar_state, child.grammar_cut = parent.grammar_state, parent.grammar_cut
    if child.admitted_s is None:
        child.admitted_s, child.num_cached = parent.admitted_s, parent.num_cached
    child.num_computed_tokens = parent.num_computed_tokens
    kv.fork(parent, child)
    scheduler.adopt(child)
