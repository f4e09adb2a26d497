"""Grammars against slow and simple truths: a recognizer by definition, masks by asking about every token.

``audit(random_grammar(rng))`` checks I40 on one small grammar: every emitted prefix can be completed, the end
is allowed in accepting states only, and an old state is as good as new.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from minillm.grammar import CompiledGrammar, GrammarError, Vocabulary
from minillm.grammar.expressions import (
    Alt,
    Bytes,
    Call,
    Chars,
    Expr,
    Repeat,
    Rules,
    Seq,
    alt,
    chars,
    literal,
    repeat,
    seq,
)

ALPHABET = "abé"


def byte_vocabulary() -> Vocabulary:
    """A token for each byte, its id, and the end of the sequence, 256."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), None], {256})


def ids_of(mask: int) -> list[int]:
    """The tokens of a mask."""
    return [id for id, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


def accepts(grammar: CompiledGrammar, text: str | bytes) -> bool:
    """Whether a grammar over ``byte_vocabulary`` matches a whole text."""
    state = grammar.start()
    for byte in text.encode() if isinstance(text, str) else text:
        after = grammar.advance(state, byte)
        if after is None:
            return False
        state = after
    return grammar.is_accepting(state)


class Recognizer:
    """Whether rules match, by the definition of each expression: no automaton, no derivative."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._memo: dict[tuple[int, bytes, int], frozenset[int]] = {}

    def matches(self, data: bytes) -> bool:
        return len(data) in self._ends(self._rules.rules[self._rules.root], data, 0)

    def _ends(self, expr: Expr, data: bytes, at: int) -> frozenset[int]:
        """Where a match that begins at ``at`` may end."""
        key = (id(expr), data, at)
        if key not in self._memo:
            self._memo[key] = frozenset()  # a rule that is nothing but itself matches nothing
            self._memo[key] = frozenset(self._find(expr, data, at))
        return self._memo[key]

    def _find(self, expr: Expr, data: bytes, at: int) -> set[int]:
        match expr:
            case Bytes(wanted):
                return {at + len(wanted)} if data.startswith(wanted, at) else set()
            case Chars(ranges):
                found = (chr(point).encode() for low, high in ranges for point in range(low, high + 1))
                return {at + len(char) for char in found if data.startswith(char, at)}
            case Seq(head, tail):
                return {end for middle in self._ends(head, data, at) for end in self._ends(tail, data, middle)}
            case Alt(options):
                return {end for option in options for end in self._ends(option, data, at)}
            case Call(rule):
                return set(self._ends(self._rules.rules[rule], data, at))
            case Repeat(body, low, high):
                reached, found, count = {at}, {at} if low == 0 else set(), 0
                limit = low + len(data) + 1 if high is None else high
                while reached and count < limit:
                    count += 1
                    reached = {end for start in reached for end in self._ends(body, data, start)}
                    if count >= low:
                        found |= reached
                return found
        raise TypeError(f"{expr} is not made by a front end")


@dataclass
class Case:
    rules: Rules
    vocabulary: Vocabulary
    seed: int


def random_grammar(rng: random.Random) -> Case:
    """A few small rules over three characters, one of them of two bytes, and a vocabulary that cuts anywhere."""
    names = ["root", "one", "two"][: rng.randint(1, 3)]

    def expression(depth: int) -> Expr:
        kind = rng.choice(["literal", "literal", "chars"] if depth == 0 else ["seq", "seq", "alt", "repeat", "call"])
        if kind == "literal":
            return literal("".join(rng.choices(ALPHABET, k=rng.randint(1, 3))))
        if kind == "chars":
            return chars(((97, 98),) if rng.random() < 0.5 else ((97, 97), (233, 233)))
        if kind == "seq":
            return seq(*(expression(depth - 1) for _ in range(rng.randint(0, 3))))
        if kind == "alt":
            return alt(*(expression(depth - 1) for _ in range(rng.randint(1, 3))))
        if kind == "repeat":
            low = rng.randint(0, 2)
            return repeat(expression(depth - 1), low, rng.choice([None, low, low + 1, low + 3]))
        return Call(rng.choice(names))

    rules = Rules({name: expression(rng.randint(1, 3)) for name in names}, "root")
    alphabet = ALPHABET.encode()
    longer = sorted({bytes(rng.choices(alphabet, k=rng.randint(2, 5))) for _ in range(rng.randint(0, 60))})
    single = [bytes([byte]) for byte in sorted(set(alphabet))]
    if rng.random() < 0.2:  # a byte that only longer tokens have, so that it cannot be relied on
        single.remove(rng.choice(single))
    tokens: list[bytes | None] = [None, None, *single, *longer]
    rng.shuffle(tokens)
    return Case(rules, Vocabulary(tokens, {tokens.index(None)}), rng.randrange(1 << 30))


def audit(case: Case, walks: int = 4) -> bool:
    """Check everything about one grammar. False if it is one that cannot be compiled."""
    try:
        grammar = CompiledGrammar(case.rules, case.vocabulary)
        by_bytes = CompiledGrammar(case.rules, byte_vocabulary())
    except GrammarError:
        return False
    rng = random.Random(case.seed)
    truth = Recognizer(case.rules)
    for _ in range(20):
        text = "".join(rng.choices(ALPHABET, k=rng.randint(0, 6))).encode()
        text = text[: len(text) - (rng.random() < 0.1)]
        assert accepts(by_bytes, text) == truth.matches(text), f"{text!r} in {case.rules}"
    for _ in range(walks):
        _audit_walk(grammar, truth, rng, grammar.tokens_to_finish(grammar.start()) + rng.randint(0, 6))
    return True


def _audit_walk(grammar: CompiledGrammar, truth: Recognizer, rng: random.Random, budget: int) -> None:
    """One random output within a budget, every mask of it checked, then the walk back."""
    vocabulary = grammar.vocabulary
    state, output = grammar.start(), b""
    been: list[tuple[object, int]] = []
    while budget:
        mask = grammar.allowed(state)
        after = {id: grammar.advance(state, id) for id in range(vocabulary.size)}
        assert ids_of(mask) == [id for id, reached in after.items() if reached is not None]
        assert bool(mask & vocabulary.eos_mask) == grammar.is_accepting(state) == truth.matches(output)
        # Every token that is allowed can be completed, and within what it says that it takes.
        costs = {id: grammar.tokens_to_finish(reached) for id, reached in after.items() if reached is not None}
        assert min(costs.values()) <= max(grammar.tokens_to_finish(state) - 1, 0)
        within = grammar.allowed(state, budget)
        assert ids_of(within) == [id for id, cost in costs.items() if cost < budget], f"budget {budget}"
        been.append((state, mask))
        choice = rng.choice(ids_of(within))
        if choice in vocabulary.eos_ids:
            break
        reached = after[choice]
        assert reached is not None
        output += vocabulary.tokens[choice] or b""
        state, budget = reached, budget - 1
    assert grammar.is_accepting(state), f"{output!r} was cut"
    assert truth.matches(output)
    output.decode()
    assert grammar.is_finished(state) == (grammar.allowed(state) == vocabulary.eos_mask)
    for old, mask in reversed(been):
        assert grammar.allowed(old) == mask  # type: ignore[arg-type]
