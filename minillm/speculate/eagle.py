"""An EAGLE-style head: one small module predicts the target's next hidden state, and from that one the next.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024): features follow each other
more regularly than tokens do, and the token that was drawn, which the module sees, settles what they leave open.
The first run of a draft reads the target's own hidden states, and brings the K/V up to them; what was kept of
drafted tokens before is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minillm.speculate.heads import Chain, ChainHeads, Run


class EagleDrafter(ChainHeads):
    """Drafts chains by one module that follows itself."""

    def grow(self, chains: Sequence[Chain]) -> None:
        runs: list[Run] = []
        hidden: list[Any] = []
        for chain in chains:
            context, count = chain.context, len(chain.ask.hidden)
            self.contexts.make_room(context, count + chain.length)
            following = chain.ask.request.token_ids[context.end + 1 :]  # the token after each hidden state
            runs.append(Run(chain, following, context.end, context.length))
            hidden.extend(chain.ask.hidden)
            context.length, context.end = context.length + count, context.end + count
        while runs:
            states = self.step(runs, hidden, 0)
            ends, end = [], 0
            for run in runs:
                end += len(run.token_ids)
                ends.append(end)
            going = [(run.chain, e - 1) for run, e in zip(runs, ends, strict=True) if _is_short(run.chain)]
            hidden = [states[last] for _, last in going]
            runs = [self._next(chain) for chain, _ in going]

    def _next(self, chain: Chain) -> Run:
        """The newest drafted token, with the hidden state that was predicted before it."""
        drafted = len(chain.tokens) - 1
        return Run(chain, chain.tokens[-1:], chain.context.end + drafted, chain.context.length + drafted)


def _is_short(chain: Chain) -> bool:
    return len(chain.tokens) < chain.length
