"""Runs draft heads beside their target: on its library and device, with its embedding, its head and its sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from minillm.backends.numeric import NumericBackend
from minillm.core.plan import StepPlan, StepResult
from minillm.models.attention import Cache
from minillm.models.heads.files import HeadFiles
from minillm.models.heads.networks import HeadModule, MedusaHeads


class NumericHeads:
    """Fulfils `minillm.speculate.heads.HeadModel`. The target is loaded before the heads are."""

    def __init__(self, target: NumericBackend, files: HeadFiles) -> None:
        self.kind, self.depth, self.num_modules = files.kind, files.depth, files.num_modules
        self._target, self._files = target, files
        self._medusa: MedusaHeads | None = None
        self._modules: list[HeadModule] = []
        self._caches: list[Cache] = []  # of each module
        self._num_slots = 0

    @property
    def cost_ratio(self) -> float:
        """Weights that one more drafted token reads, the target's head included, over those of the target."""
        spec = self._target.spec
        own = self._files.num_parameters / self.num_modules
        return (own + spec.vocab_size * spec.hidden) / self._target.model.weights.parameters

    def load(self, *, num_blocks: int, block_size: int) -> None:
        """Read the weights and make room for K/V in ``num_blocks`` blocks; called again, what is there stays."""
        target, ops = self._target, self._target.ops
        if self.kind == "medusa":
            self._medusa = MedusaHeads(self._files, ops, target.matrix)
            return
        if not self._modules:
            embed = target.decoder.parameters.embed
            self._modules = [
                HeadModule(self._files, i, target.spec, ops, embed, target.matrix, target.vector)
                for i in range(self.num_modules)
            ]
        before, kept = self._caches, self._num_slots
        self._num_slots = num_blocks * block_size
        self._caches = [target.new_cache(module.cache_spec, self._num_slots) for module in self._modules]
        for old, new in zip(before, self._caches, strict=False):
            for a, b in zip(old, new, strict=True):
                b[:kept] = a[:kept]

    def run(self, plan: StepPlan, hidden: Sequence[Any], module: int) -> tuple[StepResult, Sequence[Any]]:
        """Draws after hidden states, and the states that another run can go on from."""
        started, target, ops = time.perf_counter(), self._target, self._target.ops
        result, states = StepResult([], 0.0), ops.stack(hidden)
        if self._medusa is not None:
            # Head by head for each request, as the draws are.
            rows = ops.stack(self._medusa.forward(states))
            target.draw(rows.swapaxes(0, 1).reshape(-1, target.spec.hidden), plan, result)
        elif self._modules:
            batch, read = target.batch_of(plan), target.metadata_of(plan, self._num_slots)
            normed, states = self._modules[module].forward(states, batch, read, self._caches[module])
            target.draw(ops.take_rows(normed, batch.logits_indices), plan, result)
            if self.kind == "eagle":
                states = normed
        else:
            raise RuntimeError("the heads have no weights yet: call load first")
        result.elapsed_s = time.perf_counter() - started
        return result, states

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the K/V of single tokens (source, target); all sources are read before anything is written."""
        sources, targets = (self._target.array(slots) for slots in np.asarray(pairs, dtype=np.int64).T.copy())
        for array in (array for cache in self._caches for array in cache):
            array[targets] = array[sources]
