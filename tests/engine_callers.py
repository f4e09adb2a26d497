"""Random callers of a live engine: requests come, end early and are aborted between any two steps.

``core_harness.drive`` knows its whole workload before the first step; here nobody does. The audits are the same.
"""

from __future__ import annotations

import random

from core_harness import Job, Outcome, audit_outcome, audit_state, make_engine, random_case, random_job
from random_choices import Draw, SeededDraw

from minillm.core.observe.replay import Replay
from minillm.core.request import RequestError


class EngineCallers:
    """One engine of a random configuration."""

    def __init__(self, draw: Draw) -> None:
        self.case = random_case(random.Random(draw.integer(0, 2**32)))
        engine, model = make_engine(
            self.case.config,
            eos_ids=self.case.eos_ids,
            hash_function=self.case.hash_function,
            vocab_size=self.case.vocab_size,
            speculation=self.case.speculation(),
            is_async=self.case.is_async,
        )
        self.outcome = Outcome(engine, model)
        self.engine, self.replay = engine, Replay(engine.kv.pool.num_blocks)
        self.count = 0

    def act(self, draw: Draw) -> None:
        acts = [self.submit, self.steps, self.steps]
        if self.engine.requests:
            acts.append(self.abort)
        draw.choice(acts)(draw)

    def submit(self, draw: Draw) -> None:
        assert self.case.config.max_model_len is not None
        job: Job = random_job(random.Random(draw.integer(0, 2**32)), self.case.config.max_model_len)
        is_late = draw.integer(0, 4) == 0  # known of, but not there yet
        self.count += 1
        try:
            self.engine.add_request(
                job.prompt,
                job.params,
                request_id=f"j{self.count}",
                arrival_s=self.engine.clock() + job.arrival_s if is_late else None,
                salt=job.salt,
                priority=job.priority if self.case.config.order == "priority" else 0,
                tenant=job.tenant,
                ttft_slo_s=job.ttft_slo_s,
                tpot_slo_s=job.tpot_slo_s,
            )
        except RequestError as error:
            self.outcome.refused[self.count] = str(error)

    def abort(self, draw: Draw) -> None:
        name = draw.choice(sorted(self.engine.requests))
        was_over = self.engine.requests[name].is_finished or self.engine.requests[name].abort_requested
        done = self.engine.abort(name)
        assert done or was_over, "an abort without effect"
        self.note_aborts()
        audit_state(self.engine, self.replay)

    def note_aborts(self) -> None:
        for name, request in self.engine.requests.items():
            if request.abort_requested or request.finish_reason == "abort":
                is_told = request.params.beam_width is None  # of its tokens as they come
                self.outcome.aborted.setdefault(name, request.num_output if is_told else 0)

    def steps(self, draw: Draw) -> None:
        for _ in range(draw.integer(1, 4)):
            self.step()

    def step(self) -> None:
        self.outcome.events += self.engine.step()
        audit_state(self.engine, self.replay)

    def finish(self) -> None:
        """No more comes: all end in a bounded number of steps, and every output is right."""
        bound = 2 * (1 + self.case.config.overlap) * sum(r.max_total_tokens for r in self.engine.requests.values())
        for _ in range(bound + 2 * self.count + 5):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.engine.has_work(), "I20: no end"
        audit_outcome(self.case, self.outcome)


def random_engine_calls(seeds: range, acts: int = 25) -> None:
    """Live engines under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = EngineCallers(draw)
        for _ in range(acts):
            callers.act(draw)
        callers.finish()
