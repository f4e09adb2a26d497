"""Faults in drafting and verification: workloads that all draft kill them, and the rejection rule's, enumeration."""

from __future__ import annotations

from mutation import Edit

from minillm.core import commit as commit_module
from minillm.core.commit import Committer
from minillm.core.sampling import draws
from minillm.speculate import rejection, speculator
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.draft_tree import DraftTree
from minillm.speculate.eagle import EagleDrafter
from minillm.speculate.heads import HeadContexts
from minillm.speculate.hidden import HiddenStates
from minillm.speculate.mtp import MtpDrafter
from minillm.speculate.speculator import Speculator

# Killed by workloads that all draft.
PATH_COPIED = Edit(Committer, "_keep_accepted", "(first + node, first + i) for", "(first + i, first + node) for")
SPECULATION_MUTANTS: dict[str, list[Edit]] = {
    "last draw dropped": [Edit(commit_module, "draws_that_count", "[0, *(1 + n for n in path)]", "[0, *path[1:]]")],
    "draws of a chain": [Edit(commit_module, "draws_that_count", "(1 + n for n in path)", "range(1, len(path) + 1)")],
    "accepted unseen": [Edit(speculator, "accepted_path", "and token_id == draws[1 + node]", "")],
    "compared with the draw after it": [Edit(speculator, "accepted_path", "draws[1 + node]", "draws[1 + candidate]")],
    "tree walked as a chain": [Edit(speculator, "accepted_path", "draft.parent(candidate) == node and ", "")],
    "committed past the stop": [Edit(commit_module, "commit_tokens", "break", "pass")],
    "rewound one too far": [Edit(Committer, "_keep_accepted", "kv.rewind(request, ", "kv.rewind(request, -1 + ")],
    "rewound one too little": [Edit(Committer, "_keep_accepted", "kv.rewind(request, ", "kv.rewind(request, 1 + ")],
    "drafts indexed": [
        Edit(Committer, "_keep_accepted", "request.num_known - 1",
             "min(request.num_known, part.start + part.num_draws)")
    ],
    "newest token taken for computed": [
        Edit(Committer, "_keep_accepted", "request.num_known - 1", "request.num_known")
    ],
    "accepted path left in its places": [Edit(Committer, "_keep_accepted", "if places:", "if False:")],
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

# Killed by workloads on a drafter that reads hidden states.
HIDDEN_MUTANTS: dict[str, list[Edit]] = {
    "hidden states of what was rejected": [
        Edit(HiddenStates, "accept", "for node in path]", "for node in range(len(path))]")
    ],
    "hidden state of another draw": [Edit(HiddenStates, "land", "hidden[draws[0]]", "hidden[draws[-1]]")],
    "hidden state of a prompt token": [Edit(HiddenStates, "land", " if draw not in plan.targets]", "]")],
    "hidden states of accepted tokens left out": [
        Edit(Speculator, "accept", "self._hidden.accept(request.request_id, path)", "pass")
    ],
}  # fmt: skip

# Killed by workloads on heads that are always right, and on some that are not.
HEAD_MUTANTS: dict[str, list[Edit]] = {
    "feature beside its own token": [Edit(EagleDrafter, "grow", "context.end + 1 :]", "context.end : -1]")],
    "drafted token run at the place before": [Edit(EagleDrafter, "_next", "context.end + drafted", "context.end")],
    "drafted K/V kept for known": [
        Edit(EagleDrafter, "grow", "context.length + count, context.end", "context.length + count + 1, context.end")
    ],
    "last places not run again": [Edit(MtpDrafter, "grow", "context.tail = states", "context.tail = [] and states")],
    "module told the token of the one before": [Edit(MtpDrafter, "grow", "position + module + 1", "position + 1")],
    "known tokens drafted again": [Edit(MtpDrafter, "grow", "max(0, first - len(known))", "0")],
    "states of the target for every module": [Edit(MtpDrafter, "grow", "hidden = list(self.step(", "(self.step(")],
    "one room for two requests": [
        Edit(HeadContexts, "_take_block", "return self._free.pop()", "return self._free[-1]")
    ],
}  # fmt: skip

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
