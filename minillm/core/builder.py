"""Writes a step plan, every column of it: plain decodes, chunks of prompts, drafts and trees alike.

The scheduler has decided which request runs how many tokens; a row follows from its request alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.core.config import EngineConfig
from minillm.core.hooks import Trace
from minillm.core.kv_manager import KVManager
from minillm.core.plan import GroupTables, StepPlan, slots_of
from minillm.core.request import Request
from minillm.core.sampling import uniform_of
from minillm.core.sampling.draws import add_draws
from minillm.core.step import Scheduled
from minillm.speculate.speculator import Speculator


class PlanBuilder:
    """Writes the plans of one scheduler."""

    def __init__(
        self, config: EngineConfig, kv: KVManager, trace: Trace, vocab_size: int, speculator: Speculator | None
    ) -> None:
        self._config = config
        self._kv = kv
        self._trace = trace
        self._vocab_size = vocab_size
        self._speculator = speculator

    def build(self, step: int, decodes: Sequence[Request], parts: Sequence[Scheduled]) -> StepPlan:
        """The plan of a step: a row for each plain request that computes one token, then one for each part."""
        plan = StepPlan(step, self._kv.block_size)
        self._add_decodes(plan, decodes)
        if parts:
            self._add_parts(plan, parts)
        plan.slot_mapping = slots_of(plan, plan.block_tables, len(decodes))
        for group in self._kv.groups[1:]:  # in every cache group a row has the same places
            tables: list[Sequence[int]] = [group.tables[request_id].blocks for request_id in plan.request_ids]
            plan.groups.append(GroupTables(slots_of(plan, tables, len(decodes)), tables))
        return plan

    def _add_decodes(self, plan: StepPlan, decodes: Sequence[Request]) -> None:
        """Many rows at once, a column at a time: this is what every token of every answer goes through."""
        count, tables = len(decodes), self._kv.block_tables
        plan.request_ids = [request.request_id for request in decodes]
        plan.block_tables = [tables[request_id].blocks for request_id in plan.request_ids]
        plan.seq_lens = [request.num_computed_tokens + request.num_in_flight for request in decodes]
        plan.positions = [length - 1 for length in plan.seq_lens]
        plan.query_start_loc = list(range(count + 1))
        plan.logits_indices = list(range(count))
        plan.sampling = [request.params for request in decodes]
        plan.uniforms = [
            0.0 if request.random_stream is None else uniform_of(request.random_stream, context - request.num_prompt)
            for request, context in zip(decodes, plan.seq_lens, strict=True)
        ]
        if self._config.overlap:
            for row, (request, position) in enumerate(zip(decodes, plan.positions, strict=True)):
                self._add_input(plan, request, position)
                request.last_draw = row
        else:
            plan.token_ids = [request.token_ids[-1] for request in decodes]
        if self._trace.enabled:
            for request, position in zip(decodes, plan.positions, strict=True):
                self._trace.emit("schedule", request.request_id, tokens=1, computed=position)

    def _add_input(self, plan: StepPlan, request: Request, position: int) -> None:
        """One token of a request, or the draw that it will be."""
        if position < len(request.token_ids):
            plan.token_ids.append(request.token_ids[position])
        else:
            # Of the step before: a plain request whose token is in flight is in every step.
            plan.drawn[len(plan.token_ids)] = request.last_draw
            plan.token_ids.append(0)

    def _add_parts(self, plan: StepPlan, parts: Sequence[Scheduled]) -> None:
        """The rows behind the decodes."""
        for part in parts:
            request, start, end = part.request, part.start, part.start + part.num_scheduled_tokens
            table = self._kv.table(request.request_id)
            self._trace.emit("schedule", request.request_id, tokens=part.num_scheduled_tokens, computed=start)
            plan.request_ids.append(request.request_id)
            plan.token_ids.extend(request.token_ids[start:end])
            plan.positions.extend(range(start, end))
            # Logits of the last known token give the next one; a chunk that ends before it gives none.
            if not request.is_plain:
                add_draws(plan, part, self._vocab_size)
            elif end == request.num_known:
                part.num_draws = 1
                plan.logits_indices.append(len(plan.token_ids) - 1)
                plan.sampling.append(request.params)
                stream = request.random_stream
                plan.uniforms.append(0.0 if stream is None else uniform_of(stream, request.num_output))
                request.last_draw = len(plan.logits_indices) - 1
            if self._speculator is not None and part.draft.token_ids:
                self._speculator.extend(plan, part)
                end += len(part.draft.token_ids)
            plan.query_start_loc.append(len(plan.token_ids))
            plan.seq_lens.append(end)
            plan.block_tables.append(table)
