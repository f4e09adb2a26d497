"""Beam search: of all ways to go on, keep the few whose tokens are the most likely together.

The beams of a search advance in step. Each asks for the most likely next tokens after it and holds still until
all have their answer; then the best ``beam_width`` extensions of all of them become the beams, wherever they
come from. An extension by a stopping id that is among these is a finished hypothesis. The search ends with the
first step after which there are ``beam_width`` of them (``early_stopping=True`` in Hugging Face transformers),
or when the longest output is reached, where the beams count as well. Hypotheses are ranked by the sum of their
tokens' log-probabilities over ``tokens ** length_penalty`` (Wu et al., 2016, without their constant). A width
of 1 is greedy search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minillm.core.kv_manager import KVManager
from minillm.core.outputs.fork import fork
from minillm.core.request import Request, Status
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.scheduler import Scheduler


class Extension(NamedTuple):
    """A beam and one more token."""

    parent: Request
    token: TokenLogprobs


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A whole output."""

    tokens: list[TokenLogprobs]
    score: float


@dataclass(slots=True, eq=False)
class BeamSearch:
    """The search of one submission, whose members are the seats of its beams."""

    members: Sequence[Request]
    beams: list[Request] = field(init=False)  # best first
    hypotheses: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False
    _offers: dict[str, TokenLogprobs] = field(default_factory=dict)  # by request id

    def __post_init__(self) -> None:
        self.beams = [self.members[0]]

    @property
    def width(self) -> int:
        return len(self.members)

    def offer(self, beam: Request, found: TokenLogprobs) -> None:
        """The most likely tokens after ``beam``. One that is preempted before all are ready offers them again."""
        self._offers[beam.request_id] = found

    @property
    def is_ready(self) -> bool:
        """Whether every beam has its offer."""
        return not self.is_done and len(self._offers) == len(self.beams)

    def select(self) -> list[Extension]:
        """The next beams, best first. Afterwards ``is_done`` tells whether there are any to follow."""
        params, longest = self.beams[0].params, self.beams[0].max_total_tokens
        is_last = self.beams[0].num_known + 1 >= longest
        chosen: list[Extension] = []
        ends: list[Extension] = []
        for place, extension in enumerate(self._ranked()):
            if extension.token.token_id not in extension.parent.stop_ids:
                chosen.append(extension)
            elif place < self.width:
                ends.append(extension)
        chosen = chosen[: self.width]
        self._offers.clear()
        self._finish(ends, params.length_penalty)
        self.is_done = len(self.hypotheses) >= self.width or is_last or not chosen
        if is_last and len(self.hypotheses) < self.width:
            self._finish(chosen, params.length_penalty)
        return chosen

    def _ranked(self) -> list[Extension]:
        """All extensions offered, the likeliest first; of equals, by beam and then by token."""
        scored = []
        for order, beam in enumerate(self.beams):
            found, so_far, wanted = self._offers[beam.request_id], beam.cumulative_logprob, beam.params.logprobs or 0
            banned = beam.stop_ids if beam.num_output < beam.params.min_tokens else ()
            for place, (token_id, logprob) in enumerate(found.top):
                if token_id not in banned:
                    token = TokenLogprobs(token_id, logprob, place + 1, found.top[:wanted])
                    scored.append((-(so_far + logprob), order, place, Extension(beam, token)))
        return [entry[-1] for entry in sorted(scored, key=lambda entry: entry[:3])]

    def _finish(self, extensions: list[Extension], length_penalty: float) -> None:
        for parent, token in extensions:
            tokens = [*parent.logprobs, token]
            score = math.fsum(t.logprob for t in tokens) / len(tokens) ** length_penalty
            self.hypotheses.append(Hypothesis(tokens, score))

    def best(self) -> list[Hypothesis]:
        """At most ``width`` hypotheses, best first; of equals, the one found first."""
        return sorted(self.hypotheses, key=lambda h: -h.score)[: self.width]

    @property
    def have_parted(self) -> bool:
        """Whether some beams run while others wait, they differ in length, or some end without the others.

        None of these may be. Those of an aborted search end one by one, as their steps land.
        """
        ending = [beam.is_finished or beam.abort_requested for beam in self.beams]
        if any(ending):
            return not all(ending)
        return not self.is_done and len({(beam.status, beam.num_known) for beam in self.beams}) > 1

    def reseat(self, extensions: list[Extension], kv: KVManager, scheduler: Scheduler) -> None:
        """Make the extensions the beams. A beam keeps its seat for its first extension; others fork from it."""
        parents = {parent.request_id for parent, _ in extensions}
        spare = [member for member in self.members if member.request_id not in parents]
        for member in spare:
            if member.status is Status.RUNNING:
                scheduler.retire(member)
        seats: list[Request] = []
        for parent, _ in extensions:
            if parent not in seats:
                seats.append(parent)
            else:
                seats.append(spare.pop(0))
                fork(parent, seats[-1], kv, scheduler)
        for seat, (_, token) in zip(seats, extensions, strict=True):
            seat.token_ids.append(token.token_id)
            seat.logprobs.append(token)
        self.beams = seats
