"""The training loop of the heads: AdamW, cosine schedule, a fixed number of steps, a function of the seed alone."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import torch
from tiny_lm.model import Llama
from tiny_lm.train import warm_cosine

from minillm.models.heads.files import HeadKind

from .data import WINDOW, Windows
from .model import KINDS, Heads


@dataclass(frozen=True)
class Plan:
    """How one kind is trained."""

    kind: HeadKind
    steps: int
    peak_lr: float
    windows_per_step: int = 12
    places_per_window: int = 64  # of the predicted tokens, those that count in a step
    warmup_steps: int = 30
    final_lr_share: float = 0.03
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    log_every: int = 50

    def lr(self, step: int) -> float:
        """Linear warm-up, then half a cosine down to ``final_lr_share`` of the peak."""
        return warm_cosine(step, self.steps, self.peak_lr, self.warmup_steps, self.final_lr_share)


PLANS = (
    Plan("medusa", steps=500, peak_lr=3e-3),
    Plan("eagle", steps=500, peak_lr=2e-3),
    Plan("mtp", steps=500, peak_lr=2e-3),
)


@dataclass(frozen=True)
class Measured:
    """Of held-out windows, by depth: loss in nats a token, and how often the best token is the target's."""

    nats: list[float]
    agreement: list[float]


def train(plan: Plan, target: Llama, data: Windows, held_out: Windows, seed: int) -> Heads:
    """Train one kind of head from its start."""
    torch.manual_seed(seed)
    heads = KINDS[plan.kind](target)
    optimizer = torch.optim.AdamW(
        heads.parameters(), lr=plan.peak_lr, betas=(0.9, 0.97), weight_decay=plan.weight_decay, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    print(f"{plan.kind}: {heads.parameter_count():,} parameters, {plan.steps} steps", flush=True)
    began, order = time.monotonic(), torch.empty(0, dtype=torch.int64)
    for step in range(plan.steps):
        if len(order) < plan.windows_per_step:
            order = torch.randperm(len(data), generator=generator)
        rows, order = order[: plan.windows_per_step], order[plan.windows_per_step :]
        places = torch.randperm(WINDOW, generator=generator)[: plan.places_per_window].sort().values
        for group in optimizer.param_groups:
            group["lr"] = plan.lr(step)
        optimizer.zero_grad(set_to_none=True)
        loss, found = heads.losses(data.ids[rows], data.features[rows], places)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), plan.clip_norm)
        optimizer.step()
        if (step + 1) % plan.log_every == 0 or step + 1 == plan.steps:
            record = {
                "step": step + 1,
                "train_nats": [round(float(one.nats), 3) for one in found],
                "seconds": round(time.monotonic() - began, 1),
            }
            print(json.dumps(record), flush=True)
    measured = evaluate(heads, held_out)
    print(json.dumps({"kind": plan.kind, "nats": measured.nats, "agreement": measured.agreement}), flush=True)
    return heads


def evaluate(heads: Heads, data: Windows) -> Measured:
    """Over all windows and places."""
    places, sums = torch.arange(WINDOW), []
    with torch.no_grad():
        for ids, features in zip(data.ids.split(8), data.features.split(8), strict=True):
            found = heads.losses(ids, features, places)[1]
            sums.append([(float(one.nats) * len(ids), float(one.agreement) * len(ids)) for one in found])
    by_depth = list(zip(*sums, strict=True))
    return Measured(
        [round(sum(nats for nats, _ in depth) / len(data), 4) for depth in by_depth],
        [round(sum(share for _, share in depth) / len(data), 4) for depth in by_depth],
    )
