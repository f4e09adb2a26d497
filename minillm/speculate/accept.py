"""Which tokens of a draft the target accepts: those that its own draws equal.

The step that verifies a draft draws a token after the last known one and after each drafted one. Down from
the root, a drafted token is accepted if it is what was drawn in its place; the draw after the last accepted
one is a new token whatever the draft said, so a step yields one token more than it accepts.

What is lossless about it depends on how the draws are made, the one thing in which the two verifications
differ:

- ``"draw"``: each draw is the target's own, with the request's own number for that output. Then every token
  that comes out is the very one that a run without speculation yields, at any temperature and under any
  penalty or grammar, and a drafter needs no probabilities. For a draft without probabilities this is the
  rejection rule itself: against a proposal that is certain of d, the rule accepts d with probability p(d) and
  draws from p without d otherwise, and that is what a draw from p does.
- ``"rejection"``: a draw in whose place a token was drafted from q follows the rule of Leviathan et al. (2023)
  and Chen et al. (2023), `minillm.speculate.rejection`. It yields the drafted token as often as p and q
  allow at all, the sum of min(p, q), and its outputs have the target's distribution; but which ones they are
  depends on the draft, so a seed does not give the ids of a run without speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.speculate.draft import Draft
from minillm.speculate.tree import ROOT


def accepted_path(draft: Draft, draws: Sequence[int]) -> list[int]:
    """Indices of the draft's accepted tokens, first to last.

    ``draws[0]`` was made after the last known token, ``draws[1 + j]`` after the draft's token ``j``.
    """
    path: list[int] = []
    node = ROOT
    for candidate, token_id in enumerate(draft.token_ids):  # parents come first, so one pass suffices
        if draft.parent(candidate) == node and token_id == draws[1 + node]:
            path.append(candidate)
            node = candidate
    return path


def draws_that_count(path: Sequence[int]) -> list[int]:
    """Of the draws: the one in the place of each accepted token, and that after the last of them, in order."""
    return [0, *(1 + n for n in path)]
