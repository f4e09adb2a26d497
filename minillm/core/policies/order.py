"""Orders: which of the waiting is next, and which of the running gives way. When they may join is `policy`'s.

An order ranks requests, smallest first. Requests may be kept in lanes (a tenant's, say): lanes take turns by
their own rank, which may only rise while they wait, and within a lane the requests' rank decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from minillm.core.config import EngineConfig
from minillm.core.policies.step_times import StepTimes
from minillm.core.request import Request

Rank = tuple[float, ...]


class FirstComeOrder:
    """First come first served; the other orders are what they change of it."""

    preempts = False  # whether a waiting request may take a running one's place: see ``outranks``
    generation = 0  # rises when ranks given before no longer hold, so that a queue sorts itself again

    def rank(self, request: Request) -> Rank:
        """Within its lane: the smallest is served first, the largest gives way first."""
        return (request.arrival_s, request.index)

    def lane(self, request: Request) -> str:
        """The lane that the request waits in."""
        return ""

    def lane_rank(self, lane: str) -> float:
        """The lane with the smallest is next. May rise at any time, and never falls."""
        return 0.0

    def standing(self, request: Request) -> tuple[float, str, Rank]:
        """Rank among all requests: whoever has the largest is preempted first."""
        lane = self.lane(request)
        return (self.lane_rank(lane), lane, self.rank(request))

    def outranks(self, waiting: Request, running: Request) -> bool:
        """Whether ``waiting`` may take the place of ``running``."""
        return False

    def on_lane(self, lane: str, floor: float) -> None:
        """A new request opens ``lane``; ``floor`` is the smallest rank of the lanes that wait."""

    def on_admit(self, request: Request) -> None:
        """The request leaves the queue, its cached tokens known."""

    def on_token(self, request: Request) -> None:
        """The request got an output token."""

    def on_step(self, now_s: float, running: Iterable[Request]) -> None:
        """A step is about to be planned."""

    def max_chunk(self, request: Request, num_tokens: int) -> int:
        """Tokens of a prompt that may run in this step, in which ``num_tokens`` others run already; 1 or more."""
        return self._UNLIMITED

    _UNLIMITED = 2**63


class PriorityOrder(FirstComeOrder):
    """The highest ``Request.priority`` first, and among equals first come first served.

    A waiting request takes the place of running ones of lower priority.
    """

    preempts = True

    def rank(self, request: Request) -> Rank:
        return (-request.priority, request.arrival_s, request.index)

    def outranks(self, waiting: Request, running: Request) -> bool:
        return waiting.priority > running.priority


class ShortestOrder(FirstComeOrder):
    """The fewest tokens left first, of the prompt and of the longest output allowed; who waits grows shorter.

    A request shrinks by ``ageing_tokens_per_s`` while it waits. All shrink alike, so the rank between two
    of them never changes, and nobody is overtaken by who came ``tokens left / ageing_tokens_per_s`` later.
    """

    def __init__(self, ageing_tokens_per_s: float) -> None:
        self._ageing_tokens_per_s = ageing_tokens_per_s

    def rank(self, request: Request) -> Rank:
        left = request.max_total_tokens - request.num_computed_tokens
        return (left + self._ageing_tokens_per_s * request.arrival_s, request.arrival_s, request.index)


class FairOrder(FirstComeOrder):
    """The tenant that was served least is next: the virtual token counter of Sheng et al., OSDI 2024.

    A counter rises by one for each prompt token computed and by two for each output token. A tenant that
    comes back is lifted to the least counter of those that wait: no credit is saved up while idle.
    """

    PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # the paper's; an output token takes a row of a step of its own

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}  # service received, by tenant

    def lane(self, request: Request) -> str:
        return request.tenant

    def lane_rank(self, lane: str) -> float:
        return self.counters.get(lane, 0.0)

    def on_lane(self, lane: str, floor: float) -> None:
        self.counters[lane] = max(self.lane_rank(lane), floor)

    def on_admit(self, request: Request) -> None:
        # What is computed again after a preemption is the engine's doing, not the tenant's.
        if not request.num_preemptions:
            self._charge(request, self.PROMPT_WEIGHT * (request.num_prompt - request.num_cached))

    def on_token(self, request: Request) -> None:
        self._charge(request, self.OUTPUT_WEIGHT)

    def _charge(self, request: Request, tokens: int) -> None:
        self.counters[request.tenant] = self.lane_rank(request.tenant) + tokens


class DeadlineOrder(FirstComeOrder):
    """The least slack first: time until the next token is due, less the time that its tokens take to compute.

    The first token is due ``ttft_slo_s`` after arrival, each further one ``tpot_slo_s`` later. What a step
    takes is measured. Prompts are cut so that the step ends before the running requests' next tokens are
    due, except for a prompt that has less slack than they have.
    """

    def __init__(self, times: StepTimes, ttft_slo_s: float, tpot_slo_s: float) -> None:
        self._times = times
        self._ttft_slo_s = ttft_slo_s
        self._tpot_slo_s = tpot_slo_s
        self._per_token_s = 0.0  # what ranks are computed with: as measured when the queue was last sorted
        self._due_s = self._room = float("inf")  # the earliest next token, and the tokens that fit before it

    def rank(self, request: Request) -> Rank:
        gap = request.num_known - request.num_computed_tokens
        return (self.due_s(request) - self._per_token_s * gap, request.arrival_s, request.index)

    def due_s(self, request: Request) -> float:
        """When the request's next token is due, on the engine's clock."""
        ttft = self._ttft_slo_s if request.ttft_slo_s is None else request.ttft_slo_s
        tpot = self._tpot_slo_s if request.tpot_slo_s is None else request.tpot_slo_s
        if not request.token_times_s:
            return request.arrival_s + ttft
        return request.token_times_s[0] + tpot * request.num_output

    def on_step(self, now_s: float, running: Iterable[Request]) -> None:
        # Sorted anew only when a token's time has doubled or halved: few times in a run.
        if not self._per_token_s / 2 <= self._times.per_token_s <= self._per_token_s * 2:
            self._per_token_s = self._times.per_token_s
            self.generation += 1
        self._due_s = min((self.due_s(r) for r in running if r.token_times_s), default=float("inf"))
        self._room = self._times.tokens_within(self._due_s - now_s)

    def max_chunk(self, request: Request, num_tokens: int) -> int:
        if self._room == float("inf") or self.rank(request)[0] < self._due_s:
            return self._UNLIMITED
        return max(1, int(self._room) - num_tokens)


def make_order(config: EngineConfig, times: StepTimes) -> FirstComeOrder:
    """The order that ``config.order`` names; ``times`` are the engine's measured steps."""
    match config.order:
        case "fcfs":
            return FirstComeOrder()
        case "priority":
            return PriorityOrder()
        case "shortest":
            return ShortestOrder(config.ageing_tokens_per_s)
        case "fair":
            return FairOrder()
        case "deadline":
            return DeadlineOrder(times, config.ttft_slo_s, config.tpot_slo_s)
