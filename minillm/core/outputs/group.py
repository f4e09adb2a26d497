"""Several outputs of one prompt: who they are, how one parts from another, and which of them are returned.

The first member computes the prompt alone. When its first tokens are drawn, one for each member from the same
logits, the others fork from it: they share its blocks, and copy one only to write into it. From then on each
is a request like any other, which is preempted, resumed and ended by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minillm.core.request import Request, Search, Status


@dataclass(slots=True, eq=False)
class Group:
    """The requests of one submission. Those that have not begun, or wait for a place in a beam, are ``PENDING``."""

    members: list[Request]
    beams: Search | None = None
    has_forked: bool = False

    @property
    def num_joining(self) -> int:
        """Members that hold no place in the batch yet but are owed one, for a member runs that they will part from."""
        if not any(member.status is Status.RUNNING for member in self.members):
            return 0
        return sum(member.status is Status.PENDING for member in self.members)

    @property
    def num_bringing(self) -> int:
        """Members that will join once one is admitted, and were not owed a place before."""
        return 0 if self.num_joining else sum(member.status is Status.PENDING for member in self.members)

    def depends_on(self, member: Request) -> bool:
        """Whether the others cannot go on without ``member``."""
        return self.beams is not None or (not self.has_forked and member is self.members[0])

    @property
    def is_finished(self) -> bool:
        return all(member.is_finished for member in self.members)


def together(request: Request) -> list[Request]:
    """The request and the beams that must run and wait with it: those of its search with the same status.

    Beams advance in step. One of them in the queue would keep the others in the batch from going on, and they
    would keep the blocks that it waits for.
    """
    group = request.group
    if group is None or group.beams is None:
        return [request]
    return [member for member in group.members if member.status is request.status]


def outputs(request: Request) -> list[Request]:
    """What is returned for a submission whose first or only request this is: ``n`` of its members, in order.

    Samples come in the order of their streams; those of ``best_of`` by mean log-probability of their tokens, as
    the OpenAI API ranks them, and hypotheses of a beam search by score, both best first.
    """
    if request.group is None:
        return [request]
    members, params = request.group.members, request.params
    if params.best_of is not None:
        members = sorted(members, key=lambda member: (-_merit(member), member.index))
    return members[: params.n]


def _merit(request: Request) -> float:
    """Mean log-probability of the output; the least of all for one that was cut off."""
    if request.finish_reason not in ("stop", "length"):
        return -math.inf
    return request.cumulative_logprob / request.num_output
