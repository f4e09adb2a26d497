"""What changes the logits of one draw before its temperature: penalties, then biases, then bans.

``Transform`` is the data that crosses to a backend; ``shaped`` is the reference in plain Python, which
backends vectorize and are tested against. Nothing here remembers a request: a transform is made anew
for each draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Transform:
    """One draw's changes, applied in the order of the fields."""

    # Divides a positive logit and multiplies a negative one, once for each id of ``prompt_ids`` and
    # ``output_counts`` (Keskar et al., 2019). 1 changes nothing.
    repetition_penalty: float = 1.0
    prompt_ids: Collection[int] = frozenset()  # distinct; needed for the repetition penalty alone
    output_counts: Mapping[int, int] = field(default_factory=dict)  # how often each id was output so far
    frequency_penalty: float = 0.0  # subtracted once for each time that the id was output
    presence_penalty: float = 0.0  # subtracted if it was output at all
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of these ids
    banned: Collection[int] = frozenset()  # ids that may not be drawn
    allowed: int | None = None  # only these ids may be drawn: bit i, counted from the lowest, is id i

    @property
    def changes_anything(self) -> bool:
        return bool(self.prompt_ids or self.output_counts or self.bias or self.banned or self.allowed is not None)

    def penalties(self) -> list[tuple[int, float, float]]:
        """(id, repetition penalty, what is subtracted), for every id that a penalty concerns."""
        counts = self.output_counts
        found = [
            (i, self.repetition_penalty, n * self.frequency_penalty + self.presence_penalty) for i, n in counts.items()
        ]
        if self.repetition_penalty != 1:
            found += [(i, self.repetition_penalty, 0.0) for i in self.prompt_ids if i not in counts]
        return found


def mask_bytes(allowed: int, vocab_size: int) -> bytes:
    """The mask as bytes, id 0 in the lowest bit of the first. ``ValueError`` for ids outside the vocabulary."""
    if allowed < 0 or allowed.bit_length() > vocab_size:
        raise ValueError(f"a mask allows id {allowed.bit_length() - 1:,}, the vocabulary has {vocab_size:,} ids")
    return allowed.to_bytes((vocab_size + 7) // 8, "little")


def shaped(logits: Sequence[float], transform: Transform) -> list[float]:
    """``logits [V]`` after the transform; a banned id has ``-inf``."""
    result = list(logits)
    for token_id, repetition, subtracted in transform.penalties():
        logit = result[token_id]
        result[token_id] = (logit / repetition if logit > 0 else logit * repetition) - subtracted
    for token_id, bias in transform.bias.items():
        result[token_id] += bias
    for token_id in transform.banned:
        result[token_id] = -math.inf
    if transform.allowed is not None:
        bits = mask_bytes(transform.allowed, len(result))
        result = [x if bits[i >> 3] >> (i & 7) & 1 else -math.inf for i, x in enumerate(result)]
    return result
