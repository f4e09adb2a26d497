"""The training loop: AdamW, cosine schedule, a fixed number of steps, resumable, seeded by step.

The batch of a step depends on the seed and the step alone, so a run that was interrupted and
resumed sees the same data as one that was not.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import storage
from .model import Llama, Shape


def warm_cosine(step: int, steps: int, peak: float, warmup_steps: int, final_share: float) -> float:
    """The rate of a step: up to ``peak`` in a line, then down to a share of it in half a cosine."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Plan:
    """How one model is trained. `phases` are (share of the steps, tokens in a sequence)."""

    shape: Shape
    steps: int
    phases: tuple[tuple[float, int], ...]
    peak_lr: float
    tokens_per_step: int = 2048
    tokens_per_microbatch: int = 1024  # what stays in this CPU's caches best; measured
    warmup_steps: int = 150
    final_lr_share: float = 0.03
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.97)
    clip_norm: float = 1.0
    distill_share: float = 0.0  # share of the loss that is KL(teacher || model) ...
    distill_from: float = 0.0  # ... once this share of the steps is done: the teacher costs most of a step
    log_every: int = 50
    checkpoint_every: int = 250

    def sequence_tokens(self, step: int) -> int:
        """Tokens in a sequence at `step`."""
        end = 0.0
        for share, tokens in self.phases:
            end += share * self.steps
            if step < end:
                return tokens
        return self.phases[-1][1]

    def lr(self, step: int) -> float:
        """Linear warm-up, then half a cosine down to `final_lr_share` of the peak."""
        return warm_cosine(step, self.steps, self.peak_lr, self.warmup_steps, self.final_lr_share)


def batch_at(stream: Tensor, plan: Plan, step: int, seed: int) -> Tensor:
    """Random windows `[sequences, tokens + 1]` of the stream, a function of (seed, step)."""
    tokens = plan.sequence_tokens(step)
    rows = plan.tokens_per_step // tokens
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, len(stream) - tokens - 1, (rows,), generator=generator)
    return torch.stack([stream[at : at + tokens + 1] for at in starts.tolist()])


def loss_of(model: Llama, batch: Tensor, teacher: Llama | None, distill_share: float) -> Tensor:
    """Mean cross-entropy in nats per token, mixed with KL to the teacher's distribution."""
    logits = model(batch[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, batch[:, 1:].flatten())
    if teacher is None:
        return loss
    with torch.no_grad():
        wanted = F.log_softmax(teacher(batch[:, :-1]).flatten(0, 1), dim=-1)
    kl = F.kl_div(F.log_softmax(logits, dim=-1), wanted, log_target=True, reduction="batchmean")
    return (1 - distill_share) * loss + distill_share * kl


def evaluate(model: Llama, stream: Tensor, tokens: int = 512, limit_tokens: int | None = None) -> float:
    """Mean cross-entropy in nats per token over consecutive windows of `tokens`."""
    total, count = 0.0, 0
    end = len(stream) if limit_tokens is None else min(len(stream), limit_tokens)
    with torch.no_grad():
        for at in range(0, end - 1, tokens):
            window = stream[at : min(at + tokens + 1, end)].unsqueeze(0)
            logits = model(window[:, :-1]).flatten(0, 1)
            total += F.cross_entropy(logits, window[:, 1:].flatten(), reduction="sum").item()
            count += window.shape[1] - 1
    return total / count


def make_optimizer(model: Llama, plan: Plan) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, not on norms."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.peak_lr, betas=plan.betas, fused=True)


def save_checkpoint(path: Path, model: Llama, optimizer: torch.optim.AdamW, step: int) -> None:
    """Write weights, both AdamW moments and the number of finished steps."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        moments = optimizer.state[parameter]
        tensors[name] = parameter
        tensors["first." + name] = moments["exp_avg"]
        tensors["second." + name] = moments["exp_avg_sq"]
    storage.save(path, tensors, {"step": str(step)})


def load_checkpoint(path: Path, model: Llama, optimizer: torch.optim.AdamW | None = None) -> int:
    """Restore what `save_checkpoint` wrote; returns the number of finished steps."""
    tensors, metadata = storage.load(path)
    step = int(metadata["step"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
            if optimizer is not None:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": tensors["first." + name],
                    "exp_avg_sq": tensors["second." + name],
                }
    return step


def train(plan: Plan, stream: Tensor, held_out: Tensor, path: Path, seed: int, teacher: Llama | None = None) -> Llama:
    """Train to `plan.steps`, from the checkpoint at `path` when there is one."""
    torch.manual_seed(seed)
    model = Llama(plan.shape)
    optimizer = make_optimizer(model, plan)
    first = load_checkpoint(path, model, optimizer) if path.exists() else 0
    print(f"{path.stem}: {model.parameter_count():,} parameters, from step {first}", flush=True)
    began, running = time.monotonic(), 0.0
    for step in range(first, plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.lr(step)
        batch = batch_at(stream, plan, step, seed)
        parts = batch.split(max(1, plan.tokens_per_microbatch // (batch.shape[1] - 1)))
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            guide = teacher if step >= plan.distill_from * plan.steps else None
            loss = loss_of(model, part, guide, plan.distill_share) * (len(part) / len(batch))
            loss.backward()
            running += loss.item() / plan.log_every
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
        optimizer.step()
        done = step + 1
        if done % plan.log_every == 0:
            seconds = time.monotonic() - began
            record = {"step": done, "train_loss": round(running, 4), "lr": round(plan.lr(step), 6)}
            record["seconds"] = round(seconds, 1)
            record["tokens_per_s"] = round((done - first) * plan.tokens_per_step / seconds)
            print(json.dumps(record), flush=True)
            running = 0.0
        if done % plan.checkpoint_every == 0 or done == plan.steps:
            save_checkpoint(path, model, optimizer, done)
            loss_held = evaluate(model, held_out, limit_tokens=None if done == plan.steps else 16384)
            print(json.dumps({"step": done, "held_out_loss": round(loss_held, 4)}), flush=True)
    return model
