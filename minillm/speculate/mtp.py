"""Multi-token prediction: a module for each token ahead, which reads what the module before it made of the same place.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2. Module k reads the states of module k - 1 (module
1 the target's hidden states) and, beside that of place i, the token at i + k; from what it makes of them token
i + k + 1 is drawn. So the last places were run with drafted tokens, and are run again when these are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.speculate.heads import Chain, ChainHeads, HeadModel, Run


class MtpDrafter(ChainHeads):
    """Drafts chains of at most as many tokens as modules are used, all or the first ``depth``."""

    def __init__(self, model: HeadModel, depth: int | None = None) -> None:
        super().__init__(model)
        self._depth = model.depth if depth is None else min(depth, model.depth)

    def grow(self, chains: Sequence[Chain]) -> None:
        hidden, places = [], []
        for chain in chains:
            context = chain.context
            self.contexts.make_room(context, len(chain.ask.hidden))
            again, states = len(context.tail), [*context.tail, *chain.ask.hidden]
            places.append((context.end - again, context.length - again, len(states)))
            hidden.extend(states)
            context.length += len(chain.ask.hidden)
            context.end += len(chain.ask.hidden)
            context.tail = states[max(0, len(states) - self._depth + 1) :]
        # Every module runs for every chain, also where fewer tokens are wanted: its K/V has no gaps.
        for module in range(self._depth):
            runs = []
            for chain, (position, place, count) in zip(chains, places, strict=True):
                known, first = chain.ask.request.token_ids, position + module + 1
                tokens = [*known[first:], *chain.tokens[max(0, first - len(known)) :]]
                runs.append(Run(chain, tokens[:count], position, place))
            hidden = list(self.step(runs, hidden, module))
