"""A draft model that hedges: a tree of the continuations that are the likeliest together, verified at once.

The tree grows level by level, as in EAGLE-2 (Li et al., 2024). Of the last level's tokens the model says what
may follow; the few best of these, by the product of chances along their paths, make the next level. In the
end the best of all are the draft. A chance is what the draft model says of a token; where the target will
draw at random, the token on which the draft model falls with the same number counts for a half, the others
share the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.backends.plans import Chunk, plan_of
from minillm.core.backend import Backend
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import uniform
from minillm.core.sampling.draws import bans_all, transform_for
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.speculate.draft import Ask, Draft, tree_draft
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.tree import ROOT, path_to

_DRAWN_CHANCE = 0.5


@dataclass(slots=True)
class _Tree:
    """Tokens found so far, each after its parent; ``run`` of them, in that order, went through the model."""

    ask: Ask
    num_computed_tokens: int
    depth: int  # of the deepest token that is wanted
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # sums of logarithms of chances along the path
    run: list[int] = field(default_factory=list)
    level: list[int] = field(default_factory=lambda: [ROOT])  # what is run next, the last of ``run``

    def path(self, node: int) -> list[int]:
        """The tokens down to ``node``."""
        return [self.tokens[n] for n in path_to(self.parents, node)]


class DraftTree(DraftModel):
    """Drafts trees by the model of ``backend``: at most ``width`` tokens run in a level, each with so many children."""

    def __init__(self, backend: Backend, *, width: int = 4) -> None:
        super().__init__(backend)
        if width < 1:
            raise ValueError(f"width is {width}, a level of a tree has at least 1 token")
        self._width = width

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        trees = []
        for ask in asks:
            depth = min(ask.max_depth, self._longest + 1 - ask.request.num_known)
            trees.append(_Tree(ask, self.num_cached(ask), depth))
        growing = [tree for tree in trees if tree.depth > 0]
        while growing:
            self._grow_level(growing)
            growing = [tree for tree in growing if tree.level]
        for tree in trees:
            # Its tokens lie in the order in which they were run, which is not that of the draft: none of them stays.
            self._remember(tree.ask, 0 if tree.tokens else -1)
        return [self._best(tree) for tree in trees]

    def _grow_level(self, trees: Sequence[_Tree]) -> None:
        plan, rows = self._plan(trees)
        result = self.backend.run(plan)
        for tree, draws in zip(trees, rows, strict=True):
            self._add_children(tree, draws, result)
            self._choose_level(tree)

    def _plan(self, trees: Sequence[_Tree]) -> tuple[StepPlan, list[dict[int, int]]]:
        """The step, and for each tree which draw was made after which token of its level."""
        chunks = []
        for tree in trees:
            tokens = [*tree.ask.request.token_ids, *(tree.tokens[n] for n in tree.run)]
            chunks.append(Chunk(tokens, tree.ask.blocks, tree.num_computed_tokens, params=None))
        plan = plan_of(chunks, self._block_size)
        rows: list[dict[int, int]] = []
        for row, tree in enumerate(trees):
            request, end = tree.ask.request, plan.query_start_loc[row + 1]
            first = end - len(tree.run)  # of the tree, in the plan
            place = {node: i for i, node in enumerate(tree.run)}
            if tree.run:
                plan.trees[row] = [place.get(tree.parents[node], ROOT) for node in tree.run]
                plan.positions[first:end] = [request.num_known + len(tree.path(n)) - 1 for n in tree.run]
            draws: dict[int, int] = {}
            for node in tree.level:
                drafted = tree.path(node)
                transform = None if request.is_plain else transform_for(request, drafted)
                if transform is not None and bans_all(transform, self._vocab_size):
                    continue
                draw = draws[node] = len(plan.logits_indices)
                plan.logits_indices.append(first + place.get(node, ROOT))
                plan.sampling.append(request.params)
                plan.uniforms.append(uniform(tree.ask.draw_seed, request.num_output + len(drafted)))
                plan.logprobs[draw] = min(self._width, self._vocab_size)
                if transform is not None:
                    plan.transforms[draw] = transform
            rows.append(draws)
        return plan, rows

    def _add_children(self, tree: _Tree, draws: dict[int, int], result: StepResult) -> None:
        is_greedy = tree.ask.request.params.temperature == 0
        for node, draw in draws.items():
            before = 0.0 if node == ROOT else tree.scores[node]
            for token_id, chance in chances(result.logprobs[draw], is_greedy):
                tree.tokens.append(token_id)
                tree.parents.append(node)
                tree.scores.append(before + math.log(chance))

    def _choose_level(self, tree: _Tree) -> None:
        """The best of the new tokens are run next, if their children can still be among the best of all."""
        wanted = tree.ask.max_tokens
        order = sorted(range(len(tree.tokens)), key=lambda n: -tree.scores[n])
        candidates = [n for n in order[:wanted] if tree.parents[n] in tree.level]
        room = wanted - len(tree.run)
        is_deep = not candidates or len(tree.path(candidates[0])) >= tree.depth
        tree.level = [] if is_deep else candidates[: min(self._width, room)]
        tree.run.extend(tree.level)

    def _best(self, tree: _Tree) -> Draft:
        """The tokens with the best scores; a parent's is never worse than its child's. Each first child is the best."""
        order = sorted(range(len(tree.tokens)), key=lambda n: (-tree.scores[n], n))[: tree.ask.max_tokens]
        return tree_draft(tree.tokens, tree.parents, order)


def chances(found: TokenLogprobs, is_greedy: bool) -> list[tuple[int, float]]:
    """Of the drawn token and of the likeliest ones, that the target draws them, by the draft model."""
    if is_greedy:
        # Under a mask the drawn token may not be among them.
        drawn = [] if any(i == found.token_id for i, _ in found.top) else [(found.token_id, found.logprob)]
        return [(i, math.exp(max(logprob, -700.0))) for i, logprob in [*drawn, *found.top]]
    others = 1.0 - math.exp(found.logprob)
    chances = [(found.token_id, _DRAWN_CHANCE)]
    for token_id, logprob in found.top:
        if token_id != found.token_id and others > 0:
            chances.append((token_id, (1.0 - _DRAWN_CHANCE) * min(1.0, math.exp(max(logprob, -700.0)) / others)))
    return chances
