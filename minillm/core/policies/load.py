"""Load shedding: whether a request that just came may wait, or is refused before the queue grows past its use.

A queue that only grows serves everyone too late. Refused at once, with the numbers, a client can go
elsewhere; that is what bounds on the queue and on the predicted time to first token are for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minillm.core.config import EngineConfig
from minillm.core.policies.step_times import StepTimes
from minillm.core.request import Request


class LoadShedder:
    """Bounds of the waiting queue. Nothing is bounded unless configured so."""

    _MEMORY_STEPS = 64

    def __init__(self, config: EngineConfig, times: StepTimes) -> None:
        self._config = config
        self._times = times
        self._keep = 1 - 1 / self._MEMORY_STEPS
        # Tokens that left the queue and the time it took, over steps that left someone waiting: only then is
        # the engine the limit, and not the arrivals. Both decay.
        self._drained_tokens = self._drained_s = 0.0
        self._admitted_tokens = 0
        self._last: tuple[float, int] | None = None  # when, and tokens admitted then, of a step that left someone

    def observe(self, now_s: float, admitted_tokens: int, num_waiting: int) -> None:
        """A step was planned: ``admitted_tokens`` left the queue so far, ``num_waiting`` requests are left in it."""
        if self._last is not None:
            last_s, last_tokens = self._last
            self._drained_tokens = self._keep * self._drained_tokens + last_tokens
            self._drained_s = self._keep * self._drained_s + now_s - last_s
        self._last = (now_s, admitted_tokens - self._admitted_tokens) if num_waiting else None
        self._admitted_tokens = admitted_tokens

    def refused(
        self, newcomers: Sequence[Request], num_waiting: int, waiting_tokens: int, unread_tokens: int
    ) -> list[tuple[Request, str]]:
        """Who of the newcomers, in order of arrival, has to go, and why.

        They are counted in ``num_waiting`` and ``waiting_tokens``; ``unread_tokens`` of running requests are
        still to be computed. All who wait count as ahead of a newcomer, whatever the order.
        """
        ahead = num_waiting - len(newcomers)
        tokens = waiting_tokens - sum(request.num_known for request in newcomers)
        refused = []
        for request in newcomers:
            why = self._refusal(request, ahead, tokens, unread_tokens)
            if why:
                refused.append((request, why))
            else:
                ahead += 1
                tokens += request.num_known
        return refused

    def predicted_ttft_s(self, num_tokens: int, tokens_ahead: int, unread_tokens: int = 0) -> float:
        """Seconds until a request of ``num_tokens`` has its first token; 0 before anything was measured.

        The longer of two: all the prompts in full steps, and the queue at the pace at which it moved lately.
        """
        total = unread_tokens + tokens_ahead + num_tokens
        full_steps = math.ceil(total / self._config.max_batch_tokens)
        computing_s = full_steps * self._times.base_s + self._times.per_token_s * total
        queueing_s = 0.0
        if tokens_ahead and self._drained_s > 0:
            pace = self._drained_tokens / self._drained_s
            queueing_s = tokens_ahead / pace if pace > 0 else math.inf
        return max(computing_s, queueing_s + self._times.seconds(unread_tokens + num_tokens))

    def _refusal(self, request: Request, ahead: int, tokens: int, unread_tokens: int) -> str:
        config = self._config
        if config.max_waiting_requests is not None and ahead >= config.max_waiting_requests:
            return (
                f"{ahead:,} requests wait, and max_waiting_requests is {config.max_waiting_requests:,}: "
                f"try again later, or raise it"
            )
        most_tokens = config.max_waiting_tokens
        if most_tokens is not None and ahead and tokens + request.num_known > most_tokens:
            return (
                f"{request.num_known:,} tokens on top of {tokens:,} that wait would pass max_waiting_tokens "
                f"{most_tokens:,}: try again later, or raise it"
            )
        if config.shed_late:
            limit_s = config.ttft_slo_s if request.ttft_slo_s is None else request.ttft_slo_s
            ttft_s = self.predicted_ttft_s(request.num_known, tokens, unread_tokens)
            if ttft_s > limit_s:
                return (
                    f"its first token would come after about {ttft_s:.3g} s, {tokens:,} tokens are ahead of its "
                    f"{request.num_known:,}, and ttft_slo_s is {limit_s:.3g}: try again later, or raise it"
                )
        return ""
