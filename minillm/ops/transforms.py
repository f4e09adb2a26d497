"""The transforms of a step as flat arrays, so that a library applies all of them in a few operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.sampling.shaping import Transform, mask_bytes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FlatTransforms:
    """Places in ``logits [S, V]`` and what happens there, in the order of the fields. No place is twice in one."""

    penalized: tuple[Ints, Ints]  # (rows, ids), [P] each
    repetition: Floats  # [P], divides a logit above 0 and multiplies others
    subtracted: Floats  # [P]
    biased: tuple[Ints, Ints]
    bias: Floats
    banned: tuple[Ints, Ints]
    masked_rows: Ints  # [M]
    masks: NDArray[np.bool_]  # [M, V], true where the row may draw


def flatten(transforms: Mapping[int, Transform], vocab_size: int) -> FlatTransforms:
    """``transforms`` by row. ``ValueError`` for a mask with ids outside the vocabulary."""
    penalties = [(row, *entry) for row, t in transforms.items() for entry in t.penalties()]
    biases = [(row, token_id, bias) for row, t in transforms.items() for token_id, bias in t.bias.items()]
    bans = [(row, token_id) for row, t in transforms.items() for token_id in t.banned]
    masks = [(row, mask_bytes(t.allowed, vocab_size)) for row, t in transforms.items() if t.allowed is not None]
    bits = np.frombuffer(b"".join(mask for _, mask in masks), np.uint8).reshape(len(masks), (vocab_size + 7) // 8)
    return FlatTransforms(
        penalized=_places(penalties),
        repetition=np.array([entry[2] for entry in penalties], np.float64),
        subtracted=np.array([entry[3] for entry in penalties], np.float64),
        biased=_places(biases),
        bias=np.array([entry[2] for entry in biases], np.float64),
        banned=_places(bans),
        masked_rows=np.array([row for row, _ in masks], np.int64),
        masks=np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little").astype(np.bool_),
    )


def _places(entries: Sequence[tuple[Any, ...]]) -> tuple[Ints, Ints]:
    """(rows, ids) of entries that begin with the two."""
    return np.array([e[0] for e in entries], np.int64), np.array([e[1] for e in entries], np.int64)
