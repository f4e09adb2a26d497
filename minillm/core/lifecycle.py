"""Requests from submission to their one terminal event: aborted, failed, cut off with their group, or finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Literal

from minillm.core.detokenizer import Detokenizer
from minillm.core.hooks import Trace
from minillm.core.request import Event, FinishReason, Request, RequestError, Status
from minillm.core.scheduler import Scheduler
from minillm.speculate.draft import DraftError
from minillm.speculate.speculator import Speculator


class Lifecycle:
    """Who was submitted, who has not ended, and the only way out."""

    def __init__(
        self,
        scheduler: Scheduler,
        speculator: Speculator | None,
        trace: Trace,
        clock: Callable[[], float],
        keep_ended: int | None,
    ) -> None:
        self.requests: dict[str, Request] = {}  # by id: all that have not ended, and the ``keep_ended`` that ended last
        self.num_submitted = 0
        self.detokenizers: dict[str, Detokenizer] = {}  # of those that have not ended, if there is a tokenizer
        self.num_unfinished = 0
        self.outbox: list[Event] = []  # events made outside a commit, delivered by the next step
        self._scheduler = scheduler
        self._speculator = speculator
        self._trace = trace
        self._clock = clock
        self._keep_ended = keep_ended
        self._ended: deque[Request] = deque()  # the one that ended first is forgotten first

    def names(self, request_id: str | None, number: int) -> list[str]:
        """Ids for the ``number`` outputs of one prompt: after ``request_id``, or after one that is free.

        ``RequestError`` if one of them is taken.
        """
        if request_id is None:
            tries = (self._named(f"r{i}", number) for i in count(self.num_submitted))
            return next(names for names in tries if self.requests.keys().isdisjoint(names))
        names = self._named(request_id, number)
        for name in names:
            if name in self.requests:
                raise RequestError(f"request id {name!r} is taken: choose another, or leave it out")
        return names

    @staticmethod
    def _named(request_id: str, number: int) -> list[str]:
        return [request_id, *(f"{request_id}/{sample}" for sample in range(1, number))]

    def add(self, request: Request, detokenizer: Detokenizer | None) -> None:
        """A request that was checked."""
        self.requests[request.request_id] = request
        self.num_submitted += 1
        if detokenizer is not None:
            self.detokenizers[request.request_id] = detokenizer
        self.num_unfinished += 1

    def take_events(self) -> list[Event]:
        """What no step has delivered yet."""
        events, self.outbox = self.outbox, []
        return events

    def deliver_first(self, events: Sequence[Event]) -> None:
        """Events that a step made and could not return."""
        self.outbox[:0] = events

    def abort(self, request_id: str) -> bool:
        """End a request; its terminal event comes with the next step. False if it is unknown or has ended.

        By the id of the first of several outputs, or of any hypothesis of a beam search, all of them end.
        """
        request = self.requests.get(request_id)
        if request is None:
            return False
        group = request.group
        whole = group is not None and (group.beams is not None or request is group.members[0])
        return any([self._abort(member) for member in (group.members if group is not None and whole else [request])])

    def _abort(self, request: Request) -> bool:
        if request.is_finished or request.abort_requested:
            return False
        if request.num_in_flight:
            self._end_when_it_lands(request)
        else:
            self.outbox.append(self.end(request, "abort", self._clock()))
        return True

    def _end_when_it_lands(self, request: Request) -> None:
        """The backend may be writing to its blocks: they are released when the step lands."""
        request.abort_requested = True
        request.epoch += 1  # so that commit looks at it
        self._trace.emit("abort", request.request_id)

    def end(self, request: Request, reason: FinishReason, now_s: float, text: str = "", error: str = "") -> Event:
        """End a request, and those of its group that depend on it when it is cut off."""
        group = request.group
        try:
            return self.end_one(request, reason, now_s, text, error)
        finally:
            if group is not None and reason in ("abort", "error") and group.depends_on(request):
                for member in group.members:
                    if member.num_in_flight:
                        self._end_when_it_lands(member)
                    elif not member.is_finished:
                        with suppress(Exception):  # as in `fail`
                            self.outbox.append(self.end_one(member, reason, now_s, error=error))

    def end_one(self, request: Request, reason: FinishReason, now_s: float, text: str = "", error: str = "") -> Event:
        """The only way out of a request: blocks released, one terminal event."""
        request_id = request.request_id
        self._scheduler.remove(request)
        detokenizer = self.detokenizers.pop(request_id, None)
        if detokenizer is not None and reason in ("abort", "error"):
            text = detokenizer.flush()
            request.text += text
        if request.group is not None and request.group.beams is not None and reason in ("abort", "error"):
            del request.token_ids[request.num_prompt :]  # a beam that was cut off: nobody was told of its tokens
            request.logprobs.clear()
        request.finish_reason = reason
        request.finished_s = now_s
        request.error = error
        self.num_unfinished -= 1
        kind: Literal["finish", "error"] = "error" if reason == "error" else "finish"
        self._trace.emit(kind, request_id, note=error or reason)
        event = Event(request_id, kind, now_s, text=text, finish_reason=reason, error=error)
        self._forget_oldest(request)
        if self._speculator is not None:
            try:
                self._speculator.forget(request_id)
            except Exception:  # a drafter's own fault: the request has ended all the same
                self.outbox.append(event)
                raise
        return event

    def _forget_oldest(self, request: Request) -> None:
        """Let go of what ended longest ago; outputs of one prompt once the last has ended, for they share their end."""
        if self._keep_ended is None:
            return
        if request.group is None:
            self._ended.append(request)
        elif request.group.is_finished:
            self._ended.extend(request.group.members)
        while len(self._ended) > self._keep_ended:
            self.requests.pop(self._ended.popleft().request_id, None)

    def fail(self, requests: Sequence[Request], error: BaseException) -> None:
        """Something raised in a step of these requests: those that have not ended do."""
        now_s = self._clock()
        message = str(error) if isinstance(error, DraftError) else f"{type(error).__name__}: {error}"
        failing = [one for request in requests for one in (request, *self._left_behind(request))]
        for request in failing:
            request.num_in_flight = 0  # nothing of it will land
        for request in failing:
            if not request.is_finished:
                with suppress(Exception):  # of a drafter that is told: its event is in the outbox then
                    self.outbox.append(self.end(request, "error", now_s, error=message))

    @staticmethod
    def _left_behind(request: Request) -> list[Request]:
        """The outputs that parted from this one in a step that broke off before their first token."""
        group = request.group
        if group is None or not group.has_forked:
            return []
        return [m for m in group.members if m.status is Status.RUNNING and m.num_computed_tokens == m.num_known]
