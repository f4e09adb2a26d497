"""Faults in what happens after a fault: who ends, who goes on, and what of the later steps is taken back."""

from __future__ import annotations

from mutation import Edit

from minillm.core import detokenizer
from minillm.core.commit import Committer
from minillm.core.engine import Engine
from minillm.core.kv.tables import BlockCopies
from minillm.core.lifecycle import Lifecycle
from minillm.core.scheduler import Scheduler

FAULT_MUTANTS: dict[str, list[Edit]] = {
    "a commit that breaks off ends nobody": [
        Edit(Engine, "commit_step", "self._lifecycle.fail(step.requests, error)", "pass")
    ],
    "events made before a fault are lost": [
        Edit(Engine, "commit_step", "self._lifecycle.deliver_first(events)", "pass")
    ],
    "a plan that breaks off ends nobody": [
        Edit(Engine, "plan_step", "self._lifecycle.fail(self.scheduler.planning(), error)", "pass")
    ],
    "who is looked at goes on after a fault": [Edit(Scheduler, "planning", ", *self._admitting]", "]")],
    "who waits ends with the step before": [
        Edit(Scheduler, "schedule", "    self._admitting = []\n    if", "    if")
    ],
    "later steps run on what was not computed": [
        Edit(Engine, "_ends_requests_on_error", "self.scheduler.take_back(later.step)", "continue")
    ],
    "taken back and still in flight": [Edit(Scheduler, "take_back", "request.num_in_flight -= num_tokens", "pass")],
    "taken back and its blocks kept": [Edit(Scheduler, "take_back", "self._kv.rewind(request, tokens)", "pass")],
    "copies of a step taken back are lost": [Edit(BlockCopies, "put_back", "sources | {", "{")],
    "outputs that parted are left behind": [Edit(Lifecycle, "_left_behind", "if group is None or", "if True or")],
    "a fault of a drafter at an end loses the end": [
        Edit(Lifecycle, "end_one", "self.outbox.append(event)", "pass")
    ],
    "an id without a token is an error": [
        Edit(detokenizer, "text_bytes", 'name_bytes(tokenizer, token_id) or b""', "tokenizer.token_bytes(token_id)")
    ],
    "a control token writes its name": [Edit(detokenizer, "text_bytes", "is_special(token_id)", "False")],
}  # fmt: skip

LEAK_MUTANTS: dict[str, list[Edit]] = {
    "what has ended is kept": [Edit(Lifecycle, "_forget_oldest", "> self._keep_ended", "> 10**9")],
    "one of several outputs is let go of before the others": [
        Edit(Lifecycle, "_forget_oldest", "if request.group is None", "if True")
    ],
    "a step with nothing to do is taken for work": [
        Edit(Engine, "step", "self._is_idle = not self._lifecycle.outbox", "pass")
    ],
}

COUNT_MUTANTS: dict[str, list[Edit]] = {
    "accepted behind the end counted": [
        Edit(Committer, "_commit_tokens", "min(len(path), len(committed.tokens))", "len(path)")
    ],
}
