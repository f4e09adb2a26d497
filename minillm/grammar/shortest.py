"""The fewest tokens that finish a text: what a grammar needs to know when the tokens left run out.

A bound from above, and one that can be kept: from a place of cost ``n`` some token leads to a place of
cost ``n - 1`` or less. Literals are spelled by the longest tokens there are, other characters byte by byte.
"""

from __future__ import annotations

import math

from minillm.grammar.expressions import Alt, Bytes, Call, Expr, Repeat, Rules, Seq, spine
from minillm.grammar.vocabulary import Vocabulary


class Shortest:
    """Costs, in tokens, of expressions over ``rules``, which ``rules.prepare`` has made ready."""

    def __init__(self, rules: Rules, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._spelled: dict[bytes, int] = {b"": 0}
        self._rules: dict[str, float] = dict.fromkeys(rules.rules, math.inf)
        self._costs: dict[Expr, float] = {}
        before: dict[str, float] = {}
        while before != self._rules:  # until no rule gets cheaper
            before = dict(self._rules)
            self._costs.clear()
            for name, expr in reversed(rules.rules.items()):
                self._rules[name] = self._cost(expr)

    def cost(self, expr: Expr) -> int:
        """Fewest tokens of a text that ``expr`` matches."""
        return int(self._cost(expr))

    def _cost(self, expr: Expr) -> float:
        cost = self._costs.get(expr)
        if cost is None:
            match expr:
                case Bytes(data):
                    cost = self._spell(data)
                case Seq():
                    cost = sum(map(self._cost, spine(expr)))
                case Alt(options):
                    cost = min(map(self._cost, options))
                case Repeat(body, low, _):
                    cost = low * self._cost(body) if low else 0
                case Call(rule):
                    cost = self._rules[rule]
                case _:
                    cost = 1
            self._costs[expr] = cost
        return cost

    def _spell(self, data: bytes) -> int:
        if data not in self._spelled:
            for start, fewest in enumerate(self._vocabulary.tokens_to_spell(data)):
                self._spelled[data[start:]] = fewest
        return self._spelled[data]
