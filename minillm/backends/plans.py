"""Step plans without an engine: for figures, benchmarks and tests that drive a backend directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.core.plan import StepPlan, slots_of
from minillm.core.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of one sequence: compute the K/V of ``tokens[computed:until]``, of which ``computed`` are cached."""

    tokens: Sequence[int]
    blocks: Sequence[int]  # the block table; block 0 is the engine's null block
    computed: int = 0
    until: int | None = None  # None is all
    params: SamplingParams | None = _GREEDY  # None: nothing is drawn
    uniform: float = 0.0


def plan_of(chunks: Sequence[Chunk], block_size: int, step: int = 0) -> StepPlan:
    """One step over ``chunks``, as the scheduler would emit it. ``ValueError`` when a table is too short."""
    plan = StepPlan(step=step, block_size=block_size)
    for r, chunk in enumerate(chunks):
        end = len(chunk.tokens) if chunk.until is None else chunk.until
        needed = -(-end // block_size)
        if needed > len(chunk.blocks) or not chunk.computed < end <= len(chunk.tokens):
            raise ValueError(
                f"chunk {r}: tokens {chunk.computed} to {end} of {len(chunk.tokens)} need {needed} blocks of "
                f"{block_size}, its table has {len(chunk.blocks)}"
            )
        positions = range(chunk.computed, end)
        plan.request_ids.append(str(r))
        plan.token_ids += chunk.tokens[chunk.computed : end]
        plan.positions += positions
        plan.query_start_loc.append(len(plan.token_ids))
        plan.seq_lens.append(end)
        plan.block_tables.append(chunk.blocks[:needed])
        if chunk.params is not None:
            plan.logits_indices.append(len(plan.token_ids) - 1)
            plan.sampling.append(chunk.params)
            plan.uniforms.append(chunk.uniform)
    plan.slot_mapping = slots_of(plan, plan.block_tables)
    return plan
