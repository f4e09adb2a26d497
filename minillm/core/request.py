"""A request: the tokens known, how many of them are computed, its status and its times. No block in it.

There are no phases: a request has a gap between known and computed tokens, and each step closes part of
it. A prompt being read, a decode step and a resumed request differ only in the size of that gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import Any, Literal, Protocol

from minillm.core.kv.block_keys import ExtraKey
from minillm.core.sampling import SamplingParams, stream
from minillm.core.sampling.logprobs import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestError(ValueError):
    """A request that the engine cannot serve: the message has the numbers and the way out."""


class Status(Enum):
    """Where a request is; it leaves ``FINISHED`` never, and every other state by the scheduler alone."""

    PENDING = "pending"  # its arrival time has not come, or it waits for another member of its group
    WAITING = "waiting"  # queued, new or preempted: holds no block
    RUNNING = "running"
    SWAPPED = "swapped"  # preempted, with its K/V on the host: holds no block of the device
    FINISHED = "finished"


@dataclass(slots=True)
class DraftCounts:
    """What became of a request's drafts."""

    num_drafted: int = 0  # tokens, those of a tree's branches all counted
    num_accepted: int = 0
    drafts_at: list[int] = field(default_factory=list)  # by depth, from 0: drafts that had a token so deep
    accepted_at: list[int] = field(default_factory=list)  # by depth: drafts of which a token so deep was accepted

    def add(self, num_tokens: int, depth: int, num_accepted: int) -> None:
        """One draft of ``num_tokens``, its longest path of ``depth``."""
        self.merge(DraftCounts(num_tokens, num_accepted, [1] * depth, [int(i < num_accepted) for i in range(depth)]))

    def merge(self, other: DraftCounts) -> None:
        """Count what the other counts, too."""
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        self.drafts_at = [a + b for a, b in zip_longest(self.drafts_at, other.drafts_at, fillvalue=0)]
        self.accepted_at = [a + b for a, b in zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)]


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and its growing output. Times are seconds of the engine's clock."""

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    arrival_s: float
    index: int  # number in order of submission, the tie-break of equal arrival times
    seed: int  # of its random draws
    max_total_tokens: int  # prompt and output together
    stop_ids: frozenset[int] = frozenset()  # tokens that end the output
    salt: str | None = None  # requests of different salts share no block
    extra_keys: tuple[ExtraKey, ...] = ()  # what else the K/V of its tokens depends on
    priority: int = 0  # order "priority": the highest is served first
    tenant: str = ""  # order "fair": on whose account it runs
    ttft_slo_s: float | None = None  # order "deadline": arrival to first token; None takes the configuration's
    tpot_slo_s: float | None = None  # order "deadline": mean time between output tokens

    token_ids: list[int] = field(init=False)  # known: the prompt, then the output
    num_prompt: int = field(init=False)
    num_computed_tokens: int = 0  # tokens whose K/V is in the cache
    num_in_flight: int = 0  # tokens of steps planned and not yet committed
    last_draw: int = -1  # which draw is its own in the step planned last that draws for it
    epoch: int = 0  # rises when it is preempted, aborted or ends: results planned before are stale
    status: Status = Status.PENDING
    abort_requested: bool = False  # takes effect when the step in flight lands
    finish_reason: FinishReason | None = None
    error: str = ""
    text: str = ""  # all text emitted so far, with a tokenizer
    is_plain: bool = field(
        init=False
    )  # whether it draws for itself alone and nothing else: see `minillm.core.sampling.draws`
    random_stream: int | None = field(init=False)  # of its seed; None if it draws greedily
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each output token, if wanted or ranked by
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of prompt token 1, 2, ..., if wanted
    group: OutputGroup | None = None  # the outputs of the same prompt, if there are several
    grammar_state: Any = field(
        init=False, default=None
    )  # of ``params.grammar`` after the output: an immutable value, or None where it cannot follow
    grammar_cut: bool = False  # whether the tokens left kept the grammar from something that it allows
    _distinct_prompt_ids: frozenset[int] | None = None

    num_cached: int = 0  # prompt tokens found in the prefix cache when first admitted
    num_preemptions: int = 0
    num_swaps: int = 0  # how many of the preemptions kept its K/V on the host
    draft_counts: DraftCounts | None = None  # None while nothing was drafted
    admitted_s: float | None = None  # first time only
    finished_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)  # one for each output token
    chunk_sizes: list[int] = field(default_factory=list)  # output tokens of each step that yielded any

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.num_prompt = len(self.token_ids)
        self.is_plain = self.params.is_plain
        if self.params.grammar is not None:
            self.grammar_state = self.params.grammar.start()
        self.random_stream = stream(self.seed) if self.params.temperature > 0 else None

    @property
    def num_known(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def cumulative_logprob(self) -> float:
        """Of the output, as far as log-probabilities were asked for."""
        return math.fsum(one.logprob for one in self.logprobs)

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether logits of prompt tokens are still to be computed, for their log-probabilities."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt - 1

    @property
    def distinct_prompt_ids(self) -> frozenset[int]:
        if self._distinct_prompt_ids is None:
            self._distinct_prompt_ids = frozenset(self.prompt_ids)
        return self._distinct_prompt_ids

    @property
    def matches_grammar(self) -> bool | None:
        """Whether the output so far is whole by its grammar; None without one."""
        grammar = self.params.grammar
        if grammar is None:
            return None
        return self.grammar_state is not None and grammar.is_accepting(self.grammar_state)

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED


class Search(Protocol):
    """What the core asks of a beam search (`minillm.core.outputs.beams`)."""

    @property
    def width(self) -> int: ...

    @property
    def have_parted(self) -> bool: ...

    def offer(self, beam: Request, found: TokenLogprobs) -> None: ...


class OutputGroup(Protocol):
    """What the core asks of the outputs of one prompt (`minillm.core.outputs.group`)."""

    has_forked: bool

    @property
    def members(self) -> list[Request]: ...

    @property
    def beams(self) -> Search | None: ...

    @property
    def num_joining(self) -> int: ...

    @property
    def num_bringing(self) -> int: ...

    @property
    def is_finished(self) -> bool: ...

    def depends_on(self, member: Request) -> bool: ...


@dataclass(slots=True)  # not frozen: one is made for each token, and freezing doubles the time that takes
class Event:
    """What the engine tells the outside: a token, or the one terminal event of a request.

    ``text`` is new text: with a tokenizer, the texts of a request's events joined are its output text.
    """

    request_id: str
    kind: Literal["token", "finish", "error"]
    time_s: float
    token_id: int | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str = ""
    logprobs: TokenLogprobs | None = None  # of the token, if they are wanted
