"""What a batch wastes or costs by its shape."""

from __future__ import annotations

from collections.abc import Sequence

from minillm.costs.check import CostError, positive


def padding_waste(lengths: Sequence[int]) -> float:
    """The fraction of a padded batch that is padding: 1 - sum(lengths) / (count x longest)."""
    if not lengths:
        raise CostError("lengths is empty: a batch has at least one request")
    for length in lengths:
        positive(length=length)
    return 1 - sum(lengths) / (len(lengths) * max(lengths))
