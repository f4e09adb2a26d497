"""Modelled time of a simulated run: each step lasts as long as the roofline of a catalogued accelerator says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from minillm.catalog import Accelerator, Model
from minillm.core.plan import StepPlan


def step_time(model: Model, machine: Accelerator) -> Callable[[StepPlan], float]:
    """The least seconds of a step of ``model`` in bf16 on ``machine``, as a function of its plan."""

    def seconds(plan: StepPlan) -> float:
        new = [b - a for a, b in pairwise(plan.query_start_loc)]
        cached = [c - n for c, n in zip(plan.seq_lens, new, strict=True)]
        return model.step_time_s(machine, new, cached, sampled=len(plan.logits_indices))

    return seconds
