"""Faults in what the engine goes by: orders, policies, load, measured times, objectives. Their own tests kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.core import engine
from minillm.core.observe import metrics
from minillm.core.policies.batching import BatchPolicy
from minillm.core.policies.load import LoadShedder
from minillm.core.policies.order import DeadlineOrder, FairOrder, PriorityOrder, ShortestOrder
from minillm.core.policies.step_times import StepTimes
from minillm.speculate import adaptive, ngram
from minillm.speculate.adaptive import AdaptiveLength
from minillm.speculate.automaton import SuffixAutomaton
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.suffix import SuffixDrafter

ORDER_MUTANTS: dict[str, list[Edit]] = {
    "the lowest priority first": [Edit(PriorityOrder, "rank", "-request.priority", "request.priority")],
    "an equal takes the place": [Edit(PriorityOrder, "outranks", "priority > running", "priority >= running")],
    "nobody grows shorter by waiting": [
        Edit(ShortestOrder, "rank", "self._ageing_tokens_per_s * request.arrival_s", "0")
    ],
    "what is computed already counts": [Edit(ShortestOrder, "rank", " - request.num_computed_tokens", "")],
    "the longest first": [Edit(ShortestOrder, "rank", "(left +", "(-left +")],
    "an idle tenant saves up credit": [
        Edit(FairOrder, "on_lane", "max(self.lane_rank(lane), floor)", "self.lane_rank(lane)")
    ],
    "computed again, charged again": [Edit(FairOrder, "on_admit", "if not request.num_preemptions", "if True")],
    "the cached part is charged": [Edit(FairOrder, "on_admit", " - request.num_cached", "")],
    "outputs are not charged": [Edit(FairOrder, "on_token", "self.OUTPUT_WEIGHT", "0")],
    "due whenever it came": [Edit(DeadlineOrder, "due_s", "request.arrival_s + ttft", "ttft")],
    "all tokens due at once": [Edit(DeadlineOrder, "due_s", "tpot * request.num_output", "tpot")],
    "a request's own objective not looked at": [
        Edit(
            DeadlineOrder,
            "due_s",
            "self._ttft_slo_s if request.ttft_slo_s is None else request.ttft_slo_s",
            "self._ttft_slo_s",
        )
    ],
    "the time of the tokens left out of the slack": [Edit(DeadlineOrder, "rank", "self._per_token_s * gap", "0")],
    "chunks of any size": [Edit(DeadlineOrder, "max_chunk", 'self._room == float("inf") or', "True or")],
    "a late prompt held back": [Edit(DeadlineOrder, "max_chunk", "self.rank(request)[0] < self._due_s", "False")],
    "what runs in the step already takes no time": [Edit(DeadlineOrder, "max_chunk", " - num_tokens", "")],
    "a step takes no time of its own": [Edit(StepTimes, "seconds", "self.base_s + ", "")],
    "noise taken for the time of a token": [Edit(StepTimes, "observe", "and covariance > 0", "")],
    "old steps weigh as much as new ones": [Edit(StepTimes, "observe", "keep = self._keep", "keep = 1.0")],
}

POLICY_MUTANTS: dict[str, list[Edit]] = {
    "a batch joins the one before": [Edit(BatchPolicy, "admissible", "and view.num_running == 0", "")],
    "a batch larger than it may be": [
        Edit(BatchPolicy, "admissible", "min(self._batch_size, view.num_waiting)", "view.num_waiting")
    ],
    "a batch begins while more are to come": [
        Edit(BatchPolicy, "_is_ready", "return not view.more_to_come", "return True")
    ],
    "dynamic batches do not wait": [Edit(BatchPolicy, "_is_ready", "view.now_s >= self._full_wait_s()", "True")],
    "dynamic batches wait for ever": [Edit(BatchPolicy, "_is_ready", "view.now_s >= self._full_wait_s()", "False")],
    "who joins is not counted": [Edit(BatchPolicy, "on_admit", "max(0, self._left - 1)", "self._left")],
}

LOAD_MUTANTS: dict[str, list[Edit]] = {
    "one more may wait": [Edit(LoadShedder, "_refusal", "ahead >= config.max", "ahead > config.max")],
    "a long prompt is refused by an empty queue": [Edit(LoadShedder, "_refusal", "and ahead and tokens", "and tokens")],
    "newcomers do not count as ahead": [Edit(LoadShedder, "refused", "ahead += 1", "pass")],
    "tokens of newcomers are not ahead": [Edit(LoadShedder, "refused", "tokens += request.num_known", "pass")],
    "the queue's own pace not looked at": [
        Edit(LoadShedder, "predicted_ttft_s", "tokens_ahead / pace if pace > 0 else math.inf", "0.0")
    ],
    "tokens ahead take no time": [
        Edit(LoadShedder, "predicted_ttft_s", "unread_tokens + tokens_ahead + num_tokens", "num_tokens")
    ],
    "idle time counts as the queue's": [Edit(LoadShedder, "observe", "if num_waiting else None", "")],
}

METRICS_MUTANTS: dict[str, list[Edit]] = {
    "goodput counts whoever ended": [Edit(engine, "run_metrics", "r.slo_met is True", "r.slo_met is not None")],
    "one objective is enough": [Edit(metrics, "_slo_met", "return ttft_met and (", "return ttft_met or (")],
    "an abort keeps its objectives": [
        Edit(metrics, "_slo_met", 'or request.finish_reason not in ("stop", "length")', "")
    ],
}

DRAFTER_MUTANTS: dict[str, list[Edit]] = {
    "an n-gram across two tokens": [Edit(ngram, "_last_before", "if found % _WIDTH == 0", "if True")],
    "the first place instead of the latest": [Edit(ngram, "_last_before", "data.rfind(", "data.find(")],
    "the shortest n-gram counts": [
        Edit(
            NgramDrafter,
            "_propose",
            "range(min(self._longest, len(tokens) - 1), self._shortest - 1, -1)",
            "range(self._shortest, min(self._longest, len(tokens) - 1) + 1)",
        )
    ],
    "outputs of other salts matched": [
        Edit(SuffixDrafter, "forget", "self._outputs[followed.salt] =", "self._outputs[None] =")
    ],
    "a match across two outputs": [Edit(SuffixDrafter, "forget", "outputs.append(_SEPARATOR)", "pass")],
    "prompts of others matched": [
        Edit(SuffixDrafter, "forget", "followed.tokens[followed.num_prompt :]", "followed.tokens")
    ],
    "outputs kept without limit": [Edit(SuffixDrafter, "forget", "outputs.num_tokens > self._most_outputs", "False")],
    "first outputs not taken in": [Edit(SuffixDrafter, "_catch_up", "if outputs is not followed.outputs", "if False")],
    "counts do not rise": [Edit(SuffixAutomaton, "append", "self._count[new] += 1", "pass")],
    "the rarest token follows": [Edit(SuffixAutomaton, "follow", "max(counts)", "min(counts)")],
    "a split state keeps its link": [Edit(SuffixAutomaton, "_split", "self._link[target] = clone", "pass")],
    "a draft goes on however unlikely": [Edit(SuffixAutomaton, "follow", "chance < least_chance or", "")],
    "tokens behind a rejected one count": [Edit(AdaptiveLength, "observe", "min(accepted + 1, depth)", "depth")],
    "drafting is never tried again": [
        Edit(AdaptiveLength, "length", "decided * _IDLE_FADE, accepted * _IDLE_FADE", "decided, accepted")
    ],
    "drafted tokens cost nothing": [Edit(adaptive, "expected_speedup", "(1 + num_tokens * token_cost)", "1")],
    "the draw after a draft is not counted": [
        Edit(adaptive, "expected_tokens", "range(num_tokens + 1)", "range(num_tokens)")
    ],
}
