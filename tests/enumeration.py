"""The rejection rule over every pair of its random numbers, on a vocabulary of five tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from minillm.speculate import rejection
from minillm.speculate.rejection import Proposal

VOCAB = 5
PARTS = 4  # probabilities are multiples of 1 / PARTS
CELLS = 12  # a multiple of 1 to PARTS: every threshold of the rule is the edge of a cell, and a cell has one outcome


def midpoints() -> Iterator[float]:
    return ((cell + 0.5) / CELLS for cell in range(CELLS))


def ranked(parts: Sequence[int]) -> list[tuple[int, float]]:
    """As ``sampling.distribution`` returns it."""
    return sorted(((i, n / PARTS) for i, n in enumerate(parts) if n), key=lambda entry: (-entry[1], entry[0]))


def outcomes(target: Sequence[int], drafted: int, row: Sequence[float] | None) -> dict[int, Fraction]:
    """The exact distribution of the token in the place of ``drafted``."""
    found = dict.fromkeys(range(VOCAB), Fraction(0))
    for number, draw in product(midpoints(), midpoints()):
        token_id = rejection.draw_against(ranked(target), Proposal(drafted, row, number), draw)
        found[token_id] += Fraction(1, CELLS**2)
    return found


def check_rule(p: Sequence[int], q: Sequence[int]) -> None:
    """What comes out is distributed as p, and is the drafted token as often as p and q allow at all."""
    row = [n / PARTS for n in q]
    total = dict.fromkeys(range(VOCAB), Fraction(0))
    kept = Fraction(0)
    for drafted in (i for i in range(VOCAB) if q[i]):
        found = outcomes(p, drafted, row)
        kept += Fraction(q[drafted], PARTS) * found[drafted]
        for token_id, share in found.items():
            total[token_id] += Fraction(q[drafted], PARTS) * share
    assert total == {i: Fraction(p[i], PARTS) for i in range(VOCAB)}
    # Leviathan et al. (2023), corollary 3.6.
    assert kept == sum(Fraction(min(p[i], q[i]), PARTS) for i in range(VOCAB))


def check_certain(p: Sequence[int], drafted: int) -> None:
    """A draft without probabilities: a proposal that is certain, and the same as a draw from p."""
    found = outcomes(p, drafted, None)
    assert found == outcomes(p, drafted, [float(i == drafted) for i in range(VOCAB)])
    assert found == {i: Fraction(p[i], PARTS) for i in range(VOCAB)}
