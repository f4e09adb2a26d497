"""The texts that several expressions match at once, as rules: one for each set of places reached together."""

from __future__ import annotations

from collections.abc import Sequence

from minillm.grammar.automaton import Automaton, State
from minillm.grammar.expressions import EMPTY, ByteSet, Call, Expr, GrammarError, Rules, alt, seq
from minillm.grammar.rules import prepare
from minillm.grammar.vocabulary import Vocabulary

_MAX_STATES = 1_000
_BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), None], {256})


def intersect(parts: Sequence[Expr], rules: dict[str, Expr]) -> Expr:
    """What all ``parts`` match. They call no rules; the rules that this takes are added to ``rules``.

    Raises:
        GrammarError: nothing is left, or the parts need too many states together.
    """
    if len(parts) == 1:
        return parts[0]
    automata = [Automaton(prepare(Rules({"root": part}, "root"), _BYTES), _BYTES) for part in parts]
    prefix = f"both {len(rules)}."
    # Bytes that neither automaton tells apart go the same way.
    alike = [tuple(automaton.alike[byte] for automaton in automata) for byte in range(256)]
    classes = [
        (byte, sum(1 << other for other in range(256) if alike[other] == alike[byte]))
        for byte in range(256)
        if alike.index(alike[byte]) == byte
    ]
    start = tuple(automaton.start for automaton in automata)
    numbers: dict[tuple[State, ...], int] = {start: 0}
    todo = [start]
    while todo:
        states = todo.pop()
        targets: dict[tuple[State, ...], int] = {}  # where to -> by which bytes
        for byte, mask in classes:
            after = [automaton.step(state, byte) for automaton, state in zip(automata, states, strict=True)]
            alive = tuple(state for state in after if state is not None)
            if len(alive) == len(parts):
                targets[alive] = targets.get(alive, 0) | mask
        for target in targets:
            if target not in numbers:
                numbers[target] = len(numbers)
                todo.append(target)
        if len(numbers) > _MAX_STATES:
            raise GrammarError(
                f"a pattern together with a length or another pattern takes more than {_MAX_STATES:,} states: "
                "shorten the length, or write it into the pattern"
            )
        ways = [seq(ByteSet(mask), Call(f"{prefix}{numbers[target]}")) for target, mask in targets.items()]
        is_end = all(state.accepting for state in states)
        rules[f"{prefix}{numbers[states]}"] = alt(*ways, *([EMPTY] if is_end else []))
    return Call(f"{prefix}0")
