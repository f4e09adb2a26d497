"""Random ambiguous grammars, against leftmost derivations by the definition and against CYK."""

from __future__ import annotations

import random
from itertools import product

from grammar_harness import Case, Recognizer, accepts, audit, byte_vocabulary, ids_of

from minillm.grammar import CompiledGrammar, Vocabulary
from minillm.grammar.expressions import Bytes, Call, Expr, Rules, alt, seq
from minillm.grammar.regex import regex_rules

BYTES = byte_vocabulary()
Productions = dict[str, list[tuple[str, tuple[str, ...]]]]  # rule -> a letter, then rules (Greibach normal form)


def random_productions(rng: random.Random) -> Productions:
    """Two letters and up to three rules, so that most texts have many derivations. Each rule matches something."""
    names = ["root", "one", "two"][: rng.randint(1, 3)]

    def production(most: int) -> tuple[str, tuple[str, ...]]:
        return rng.choice("aaab"), tuple(rng.choices(names, k=rng.randint(0, most)))

    return {name: [production(0), *(production(2) for _ in range(rng.randint(1, 6)))] for name in names}


def rules_of(productions: Productions) -> Rules:
    def body(options: list[tuple[str, tuple[str, ...]]]) -> list[Expr]:
        return [seq(Bytes(letter.encode()), *map(Call, calls)) for letter, calls in options]

    return Rules({name: alt(*body(options)) for name, options in productions.items()}, "root")


def derivations(productions: Productions, text: str) -> set[tuple[str, ...]]:
    """What may be left to match after ``text``, over all leftmost derivations."""
    left = {("root",)}
    for letter in text:
        left = {
            (*calls, *rest[1:]) for rest in left if rest for first, calls in productions[rest[0]] if first == letter
        }
    return left


def check_short_texts(productions: Productions, longest: int = 6) -> None:
    """Viable, whole, and how far from whole: every text of two letters."""
    grammar = CompiledGrammar(rules_of(productions), BYTES)
    for length in range(longest + 1):
        for letters in product("ab", repeat=length):
            text = "".join(letters)
            left = derivations(productions, text)
            state = grammar.start()
            for byte in text.encode():
                after = grammar.advance(state, byte)
                if after is None:
                    break
                state = after
            else:
                assert left, f"{text!r} leads nowhere"
                assert grammar.is_accepting(state) == (() in left), text
                assert grammar.tokens_to_finish(state) == min(map(len, left)), text
                ends = {256} if () in left else set()
                next_letters = {ord(first) for rest in left if rest for first, _ in productions[rest[0]]}
                assert ids_of(grammar.allowed(state)) == sorted(next_letters | ends), text
                continue
            assert not left, f"{text!r} was refused"


def matches(productions: Productions, text: str) -> bool:
    """Cocke, Younger and Kasami: which rules match each part of the text, from the shortest part to the whole."""
    spans: dict[tuple[int, int], set[str]] = {}
    for length in range(1, len(text) + 1):
        for start in range(len(text) - length + 1):
            end = start + length
            found = set()
            for name, options in productions.items():
                for letter, calls in options:
                    ends = {start + 1} if text[start] == letter else set()
                    for call in calls:
                        ends = {e for m in ends for e in range(m + 1, end + 1) if call in spans.get((m, e), ())}
                    if end in ends:
                        found.add(name)
            spans[start, end] = found
    return "root" in spans.get((0, len(text)), ())


def check_long_text(productions: Productions, rng: random.Random, length: int = 20) -> None:
    """One text that may have millions of derivations: whole or not, and in few places."""
    grammar = CompiledGrammar(rules_of(productions), BYTES)
    state, text = grammar.start(), ""
    while len(text) < length:
        choice = rng.choice(ids_of(grammar.allowed(state)))
        after = grammar.advance(state, choice)
        if choice == 256 or after is None:
            break
        state, text = after, text + chr(choice)
        assert len(state.places) <= len(productions) * len(text) + 1, text
    assert grammar.is_accepting(state) == matches(productions, text), text
    for other in {text[:-1] + "a", text[:-1] + "b", text[1:]} - {text}:
        assert accepts(grammar, other) == matches(productions, other), other


def nested_counts(rng: random.Random, depth: int) -> str:
    """A pattern whose repetitions count through each other, and beside each other."""
    if depth == 0:
        return rng.choice(["a", "b", "a?", "ab?", "[ab]"])

    def counted() -> str:
        low = rng.randint(0, 3)
        body = "".join(nested_counts(rng, depth - 1) for _ in range(rng.randint(1, 2)))
        return f"({body}){{{low},{low + rng.randint(0, 4)}}}{rng.choice(['', 'a', 'b'])}"

    return counted() if rng.random() < 0.6 else f"({counted()}|{counted()})"


def check_counts(rng: random.Random) -> None:
    """Whole texts by the definition, then masks over tokens that go on through several counts."""
    rules = regex_rules(nested_counts(rng, rng.randint(1, 3)))
    grammar, truth = CompiledGrammar(rules, BYTES), Recognizer(rules)
    for _ in range(10):
        text = bytes(rng.choices(b"ab", k=rng.randint(0, 12)))
        assert accepts(grammar, text) == truth.matches(text), text
    audit(Case(rules, random_vocabulary(rng), rng.randrange(1 << 30)), walks=1)


def random_vocabulary(rng: random.Random) -> Vocabulary:
    letters = [b"a", b"b", *(bytes(rng.choices(b"ab", k=rng.randint(2, 5))) for _ in range(rng.randint(0, 30)))]
    return Vocabulary([None, *dict.fromkeys(letters)], {0})


def check_ambiguous(seed: int) -> None:
    rng = random.Random(seed)
    productions = random_productions(rng)
    check_short_texts(productions)
    check_long_text(productions, rng)
    check_counts(rng)
    audit(Case(rules_of(productions), random_vocabulary(rng), seed), walks=1)
