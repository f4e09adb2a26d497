"""Medusa: heads that each say which token comes so many places ahead, all of them from one hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024). No head sees
what another one says, so their best guesses do not belong together: the draft is a tree, of the paths whose
chances are the highest when those of its tokens are multiplied. It costs one run of small matrices and no K/V.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from minillm.core.backend import Capacity
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import uniform
from minillm.speculate.draft import NO_DRAFT, Ask, Draft, tree_draft
from minillm.speculate.draft_tree import chances
from minillm.speculate.heads import HeadModel, add_draw
from minillm.speculate.tree import ROOT


class MedusaDrafter:
    """Drafts trees; chains of the heads' own draws where their probabilities are wanted."""

    wants_hidden = True
    uses_slots = False

    def __init__(self, model: HeadModel, *, width: int = 4) -> None:
        """``width``: how many tokens of each head are looked at."""
        self.model = model
        self.cost_ratio = model.cost_ratio
        self._width = width
        self._vocab_size = 0

    def start(self, capacity: Capacity) -> None:
        self._vocab_size = capacity.vocab_size
        self.model.load(num_blocks=0, block_size=1)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        able = [ask for ask in asks if ask.hidden]
        if not able:
            return [NO_DRAFT] * len(asks)
        plan, depths = StepPlan(step=0, block_size=1), []
        for ask in able:
            depths.append(self._add_draws(plan, ask))
        result, _ = self.model.run(plan, [ask.hidden[-1] for ask in able], 0)
        drafts = {}
        for i, (ask, depth) in enumerate(zip(able, depths, strict=True)):
            draws = range(i * self.model.depth, i * self.model.depth + depth)
            drafts[ask.request.request_id] = self._draft(ask, draws, result)
        return [drafts.get(ask.request.request_id, NO_DRAFT) for ask in asks]

    def forget(self, request_id: str) -> None:
        pass

    def _add_draws(self, plan: StepPlan, ask: Ask) -> int:
        """One for each head; how many of them count. What shapes a draw depends on the tokens before it, which only
        the first head's are known: the target will reject what it bans."""
        depth = min(self.model.depth, ask.max_depth)
        for ahead in range(self.model.depth):
            draw = len(plan.logits_indices)
            plan.logits_indices.append(draw)
            plan.logprobs[draw] = min(self._width, self._vocab_size)
            if ahead == 0:
                if not add_draw(plan, ask, (), self._vocab_size):
                    depth = 0
                continue
            plan.sampling.append(ask.request.params)
            plan.uniforms.append(uniform(ask.draw_seed, ask.request.num_output + ahead))
            if ask.wants_probabilities:
                plan.distributions = [*plan.distributions, draw]
        return depth

    def _draft(self, ask: Ask, draws: range, result: StepResult) -> Draft:
        if not draws:
            return NO_DRAFT
        if ask.wants_probabilities:
            draws = draws[: ask.max_tokens]
            return Draft(
                [result.token_ids[draw] for draw in draws], None, [result.distributions[draw] for draw in draws]
            )
        is_greedy = ask.request.params.temperature == 0
        levels = [sorted(chances(result.logprobs[draw], is_greedy), key=lambda c: -c[1]) for draw in draws]
        return likeliest_tree(levels, ask.max_tokens)


def likeliest_tree(levels: Sequence[Sequence[tuple[int, float]]], num_tokens: int) -> Draft:
    """Of all paths that take one (token, chance) of each level, those that are the likeliest to begin with.

    A path's chance is the product of its tokens'. Each level has its likeliest first. The tree stands depth first, so
    that its likeliest path needs no moving when it is accepted.
    """
    tokens: list[int] = []
    parents: list[int] = []
    # Who may come next: for each token in the tree the best child, and for each the one after it at its level.
    heap = [(-levels[0][0][1], 0, ROOT, 0, 1.0)]  # (-chance, depth, parent, rank, the parent's chance)
    while heap and len(tokens) < num_tokens:
        chance, depth, parent, rank, before = heapq.heappop(heap)
        node = len(tokens)
        tokens.append(levels[depth][rank][0])
        parents.append(parent)
        if rank + 1 < len(levels[depth]):
            heapq.heappush(heap, (-before * levels[depth][rank + 1][1], depth, parent, rank + 1, before))
        if depth + 1 < len(levels):
            heapq.heappush(heap, (chance * levels[depth + 1][0][1], depth + 1, node, 0, -chance))
    return tree_draft(tokens, parents, range(len(tokens)))
