"""The second half of a step: take over what the backend computed, for whoever still wants it.

Results carry the epoch at which they were planned; those of a request that was preempted or aborted since are
dropped. Everything that is drawn, by whatever path, is appended by `minillm.core.stops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.core.backend import Backend
from minillm.core.errors import EngineError
from minillm.core.hooks import Trace
from minillm.core.kv_manager import KVManager
from minillm.core.lifecycle import Lifecycle
from minillm.core.outputs.beams import BeamSearch
from minillm.core.outputs.fork import fork
from minillm.core.plan import StepPlan, StepResult, slots_at
from minillm.core.policies.order import FirstComeOrder
from minillm.core.request import Event, Request
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.scheduler import Scheduler
from minillm.core.step import Scheduled, Step
from minillm.core.stops import commit_tokens
from minillm.speculate.accept import draws_that_count
from minillm.speculate.speculator import Speculator


class Committer:
    """Tokens, ends and blocks to index of one engine's steps."""

    def __init__(
        self,
        backend: Backend,
        kv: KVManager,
        scheduler: Scheduler,
        speculator: Speculator | None,
        order: FirstComeOrder,
        lifecycle: Lifecycle,
        trace: Trace,
    ) -> None:
        self._backend = backend
        self._kv = kv
        self._scheduler = scheduler
        self._speculator = speculator
        self._order = order
        self._lifecycle = lifecycle
        self._trace = trace
        # Somebody wants to know of each token.
        self._looks_at_tokens = trace.enabled or type(order).on_token is not FirstComeOrder.on_token

    def commit(self, step: Step, result: StepResult, now_s: float, events: list[Event]) -> None:
        """Append to ``events`` what the step brings."""
        self._commit_decodes(step, result, now_s, events)
        draw = len(step.decodes)  # the first of a part's draws
        for part in step.parts:
            request, first_draw, draw = part.request, draw, draw + part.num_draws
            if request.epoch != part.epoch:
                self._drop_result(request, now_s, events)
                continue
            fault = _fault(result, range(first_draw, first_draw + part.num_draws - len(part.draft.token_ids)))
            if fault:
                events.append(self._lifecycle.end(request, "error", now_s, error=fault))
                continue
            request.num_in_flight -= part.num_scheduled_tokens + len(part.draft.token_ids)
            request.num_computed_tokens = part.start + part.num_scheduled_tokens
            self._kv.commit(request)
            if self._speculator is not None:
                self._speculator.land(part, step.plan, result, first_draw)
            if not request.is_plain or part.draft.token_ids:
                self._commit_draws(part, step.plan, result, first_draw, now_s, events)
            elif part.num_draws:
                self._commit_token(request, result.token_ids[first_draw], now_s, events)
        for part in step.parts:  # once all beams of this step have made their offer
            beams = None if part.request.group is None else part.request.group.beams
            if isinstance(beams, BeamSearch):
                self._advance(beams, now_s, events)

    def _commit_decodes(self, step: Step, result: StepResult, now_s: float, events: list[Event]) -> None:
        """One token for each plain decode. A token that ends nothing and has no text is done here, and quickly."""
        size, detokenizers, looks = self._kv.block_size, self._lifecycle.detokenizers, self._looks_at_tokens
        faults: dict[Request, str] = {}
        if result.faults:
            faults = {step.decodes[draw]: why for draw, why in result.faults.items() if draw < len(step.decodes)}
        for request, epoch, token_id in zip(step.decodes, step.epochs, result.token_ids, strict=False):
            if request.epoch != epoch:
                self._drop_result(request, now_s, events)
                continue
            if faults and request in faults:
                events.append(self._lifecycle.end(request, "error", now_s, error=faults[request]))
                continue
            request.num_in_flight -= 1
            request.num_computed_tokens += 1
            if request.num_computed_tokens % size == 0:
                self._kv.commit(request)
            known = request.token_ids
            if looks or detokenizers or token_id in request.stop_ids or len(known) + 1 >= request.max_total_tokens:
                self._commit_token(request, token_id, now_s, events)
            else:
                known.append(token_id)
                request.token_times_s.append(now_s)
                request.chunk_sizes.append(1)
                events.append(Event(request.request_id, "token", now_s, token_id))

    def _drop_result(self, request: Request, now_s: float, events: list[Event]) -> None:
        """It ended or was preempted since the step was planned: its blocks are gone. Or an abort waited for this."""
        self._trace.emit("drop", request.request_id)
        if request.abort_requested and not request.is_finished:
            events.append(self._lifecycle.end(request, "abort", now_s))

    def _commit_draws(
        self, part: Scheduled, plan: StepPlan, result: StepResult, first_draw: int, now_s: float, events: list[Event]
    ) -> None:
        """Log-probabilities of prompt tokens, and what was drawn after the last one known, for each who draws there."""
        request = part.request
        draws = range(first_draw, first_draw + part.num_draws)
        request.prompt_logprobs.extend(result.logprobs[draw] for draw in draws if draw in plan.targets)
        draws = range(draws.start + sum(draw in plan.targets for draw in draws), draws.stop)
        if part.error:
            events.append(self._lifecycle.end(request, "error", now_s, error=part.error))
        elif draws and request.group is not None and request.group.beams is not None:
            request.group.beams.offer(request, result.logprobs[draws[0]])
        elif part.draft.token_ids:
            self._commit_draft(part, result, draws, now_s, events)
        elif draws:
            for draw, member in zip(draws, self._drawing(request), strict=True):
                if not member.is_finished:
                    self._commit_token(member, result.token_ids[draw], now_s, events, result.logprobs.get(draw))

    def _commit_draft(
        self, part: Scheduled, result: StepResult, draws: Sequence[int], now_s: float, events: list[Event]
    ) -> None:
        """The tokens that the target accepts of a draft, and the one drawn after them."""
        if self._speculator is None:
            raise EngineError(f"{part.request.request_id} has a draft without speculation")
        path = self._speculator.accept(part, [result.token_ids[draw] for draw in draws])
        draws = [draws[i] for i in draws_that_count(path)]
        fault = _fault(result, draws)
        if fault:  # what was drawn before it stands
            draws = draws[: next(i for i, draw in enumerate(draws) if draw in result.faults)]
        tokens = [result.token_ids[draw] for draw in draws]
        logprobs = [result.logprobs[draw] for draw in draws if draw in result.logprobs]
        self._commit_tokens(part.request, tokens, now_s, events, logprobs, part, path)
        if fault and not part.request.is_finished:
            events.append(self._lifecycle.end(part.request, "error", now_s, error=fault))

    def _drawing(self, request: Request) -> list[Request]:
        """The request, or all members of its group when they part here: then they run from now on."""
        group = request.group
        if group is None or group.has_forked:
            return [request]
        group.has_forked = True
        request.is_plain = request.params.is_plain
        for member in group.members[1:]:
            if not member.is_finished:
                fork(request, member, self._kv, self._scheduler)
        return group.members

    def _advance(self, beams: BeamSearch, now_s: float, events: list[Event]) -> None:
        """The next step of a beam search, if all its beams are ready for it, or its outputs if that was the last."""
        if not beams.is_ready or any(beam.is_finished for beam in beams.beams):
            return
        extensions = beams.select()
        if not beams.is_done:
            beams.reseat(extensions, self._kv, self._scheduler)
            for beam in beams.beams:
                self._trace.emit("token", beam.request_id, token_id=beam.token_ids[-1])
            return
        found = beams.best()
        for member, hypothesis in zip(beams.members, found, strict=False):
            del member.token_ids[member.num_prompt :]
            member.logprobs.clear()
            self._commit_tokens(member, [t.token_id for t in hypothesis.tokens], now_s, events, hypothesis.tokens)
        for member in beams.members[len(found) :]:
            error = f"only {len(found)} hypotheses exist: lower beam_width"
            events.append(self._lifecycle.end_one(member, "error", now_s, error=error))

    def _commit_token(
        self,
        request: Request,
        token_id: int,
        now_s: float,
        events: list[Event],
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        self._trace.emit("token", request.request_id, token_id=token_id)
        self._commit_tokens(request, (token_id,), now_s, events, () if logprobs is None else (logprobs,))

    def _commit_tokens(
        self,
        request: Request,
        token_ids: Sequence[int],
        now_s: float,
        events: list[Event],
        logprobs: Sequence[TokenLogprobs],
        part: Scheduled | None = None,
        path: Sequence[int] = (),
    ) -> None:
        """Append tokens up to the first that ends the request. With ``part``, all but the last are those of its
        draft on ``path``."""
        request_id = request.request_id
        committed = commit_tokens(
            request,
            token_ids,
            detokenizer=self._lifecycle.detokenizers.get(request_id),
            time_s=now_s,
            logprobs=logprobs,
        )
        request.chunk_sizes.append(len(committed.tokens))
        if part is not None and self._speculator is not None:
            num_kept = min(len(path), len(committed.tokens))  # the last of them has no K/V: nothing follows it
            self._speculator.count(part, num_kept)
            self._keep_accepted(part, path[: len(committed.tokens) - 1], num_kept)
        for i, (token, text) in enumerate(committed.tokens):
            self._order.on_token(request)
            events.append(Event(request_id, "token", now_s, token, text, logprobs=logprobs[i] if logprobs else None))
        if committed.finish_reason is not None:
            text, error = committed.last_text, committed.error
            events.append(self._lifecycle.end(request, committed.finish_reason, now_s, text, error))

    def _keep_accepted(self, part: Scheduled, path: Sequence[int], num_accepted: int) -> None:
        """Bring the K/V of the accepted ``path`` of a draft together, and give back the rest of its slots."""
        request, first, size = part.request, part.start + part.num_scheduled_tokens, self._kv.block_size
        for token_id in request.token_ids[first:]:
            self._trace.emit("token", request.request_id, token_id=token_id)
        # All but the newest token went through the model, in this step or before.
        request.num_computed_tokens = request.num_known - 1
        tables = [group.tables[request.request_id].blocks for group in self._kv.groups]
        # A tree's tokens lie in the tree's order: those of a path that is not its first one have others between.
        places = [(first + node, first + i) for i, node in enumerate(path) if node != i]
        if places:
            sources, targets = zip(*places, strict=True)
            for table in tables:
                every = [table] * len(places)
                pairs = zip(slots_at(every, sources, size), slots_at(every, targets, size), strict=True)
                self._backend.copy_slots(list(pairs))
        self._kv.commit(request)
        self._kv.rewind(request, request.num_computed_tokens)
        self._trace.emit("verify", request.request_id, tokens=num_accepted, computed=request.num_computed_tokens)


def _fault(result: StepResult, draws: Sequence[int]) -> str:
    """Why the first of these draws that could not be made was not; empty if all were."""
    return next((result.faults[draw] for draw in draws if draw in result.faults), "") if result.faults else ""
