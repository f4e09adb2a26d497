"""The target's hidden states on their way to a drafter that reads them: those of each request's newest tokens.

A hidden state is what the target's last layer says of a token, from which the next one is drawn. Nothing here
looks into it. Only steps that draw give one, so a prompt leaves that of its last token, and one of several outputs
of a prompt has none until it draws for itself. It depends on the tokens alone: a preemption loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minillm.core.plan import StepPlan

if TYPE_CHECKING:
    from minillm.core.step import Scheduled

MOST_STATES = 64  # kept of a request while its drafter is not asked


class HiddenStates:
    """Keeps what steps return until the drafter is asked."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Any]] = {}  # of consecutive tokens, the last one that of the newest draw
        self._drafted: Sequence[Any] = ()  # of the drafted tokens of the part that lands now

    def land(self, part: Scheduled, plan: StepPlan, hidden: Sequence[Any], first_draw: int) -> None:
        """Keep that of the part's last known token, if a draw was made from it."""
        draws = [draw for draw in range(first_draw, first_draw + part.num_draws) if draw not in plan.targets]
        if draws:
            self._keep(part.request.request_id, [hidden[draws[0]]])
            self._drafted = [hidden[draw] for draw in draws[1 : 1 + len(part.draft.token_ids)]]

    def accept(self, request_id: str, path: Sequence[int]) -> None:
        """Keep those of the accepted tokens of the draft that landed last."""
        self._keep(request_id, [self._drafted[node] for node in path])

    def take(self, request_id: str) -> Sequence[Any]:
        """Those that came since the last call; the last one is that of the newest computed token."""
        return self._kept.pop(request_id, ())

    def forget(self, request_id: str) -> None:
        self._kept.pop(request_id, None)

    def _keep(self, request_id: str, states: Sequence[Any]) -> None:
        kept = self._kept.setdefault(request_id, [])
        kept.extend(states)
        del kept[:-MOST_STATES]
