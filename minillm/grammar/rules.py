"""Rules made ready for the automaton: bytes for characters, nothing that cannot be completed, no left recursion."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Set

from minillm.grammar import characters
from minillm.grammar.expressions import (
    EMPTY,
    NEVER,
    Alt,
    Bytes,
    ByteSet,
    Call,
    Chars,
    Expr,
    GrammarError,
    Repeat,
    Rules,
    Seq,
    alt,
    repeat,
    seq,
    spine,
)
from minillm.grammar.vocabulary import Vocabulary

_MAX_CHAIN = 200  # of rules that begin with each other: far from the end of Python's stack


def prepare(rules: Rules, vocabulary: Vocabulary) -> Rules:
    """Rules over bytes, without ``Chars``, in which every part that is left matches some text.

    Raises:
        GrammarError: a rule is missing or left-recursive, nothing matches at all, or the vocabulary
            cannot spell a literal or any character of a set.
    """
    spell = _Rewriter(lambda leaf: _spell(leaf, vocabulary))
    in_bytes = {name: spell(expr) for name, expr in _used(rules)}
    productive = _fixpoint(in_bytes, lambda leaf, known: not isinstance(leaf, Call) or leaf.rule in known)
    if rules.root not in productive:
        raise GrammarError("nothing matches: every way through the rules contradicts itself or calls itself forever")

    prune = _Rewriter(lambda leaf: NEVER if isinstance(leaf, Call) and leaf.rule not in productive else leaf)
    kept = {name: prune(expr) for name, expr in in_bytes.items() if name in productive}
    first_calls_order(kept)
    return Rules(kept, rules.root)


def nullable_rules(rules: dict[str, Expr]) -> frozenset[str]:
    """The rules that match the empty text."""
    return _fixpoint(rules, _is_empty)


def is_nullable(expr: Expr, nullable: frozenset[str]) -> bool:
    """Whether an expression matches the empty text, given the rules that do."""
    return _holds(expr, lambda leaf: _is_empty(leaf, nullable), {})


def _is_empty(leaf: Expr, nullable: Set[str]) -> bool:
    return leaf.rule in nullable if isinstance(leaf, Call) else isinstance(leaf, Bytes) and not leaf.data


def _fixpoint(rules: dict[str, Expr], holds: Callable[[Expr, Set[str]], bool]) -> frozenset[str]:
    """The least set of rules whose expressions hold, when ``holds`` says so of leaves, given that set."""
    known: set[str] = set()
    found = True
    while found:
        found = False
        # Rules mostly call later ones: backwards, a long chain of them takes one round.
        for name in [*reversed(rules)]:
            if name not in known and _holds(rules[name], lambda leaf: holds(leaf, known), {}):
                known.add(name)
                found = True
    return frozenset(known)


def _holds(expr: Expr, leaf: Callable[[Expr], bool], memo: dict[int, bool]) -> bool:
    """True of a sequence if of all parts, of alternatives if of any, of a repetition if of its body or of none."""
    key = id(expr)
    if key not in memo:
        match expr:
            case Seq():
                memo[key] = all(_holds(part, leaf, memo) for part in spine(expr))
            case Alt(options):
                memo[key] = any(_holds(option, leaf, memo) for option in options)
            case Repeat(body, low, _):
                memo[key] = low == 0 or _holds(body, leaf, memo)
            case _:
                memo[key] = leaf(expr)
    return memo[key]


class _Rewriter:
    """Replaces every leaf of expressions. Equal parts become one object, so that what is known of one is known of all.

    Keeps what it was given alive, for it knows the parts by their identity.
    """

    def __init__(self, leaf: Callable[[Expr], Expr]) -> None:
        self._leaf = leaf
        self._done: dict[Expr, Expr] = {}
        self._known: dict[Hashable, Expr] = {b"": EMPTY, ("any of", ()): NEVER}

    def __call__(self, node: Expr) -> Expr:
        done, tails = self._done, list[Seq]()
        while isinstance(node, Seq) and node not in done:
            tails.append(node)
            node = node.tail
        if node not in done:
            match node:
                case Alt(options):
                    found = alt(*map(self, options))
                case Repeat(body, low, high):
                    found = repeat(self(body), low, high)
                case _:
                    found = self._leaf(node)
            done[node] = self._one_of_equals(found)
        result = done[node]
        for tail in reversed(tails):
            result = done[tail] = self._one_of_equals(seq(self(tail.head), result))
        return result

    def _one_of_equals(self, node: Expr) -> Expr:
        key: Hashable
        match node:
            case Bytes(data):
                key = data
            case ByteSet(mask):
                key = mask
            case Seq(head, tail):
                key = (head, tail)
            case Repeat(body, low, high):
                key = (body, low, high)
            case Alt(options):
                key = ("any of", options)
            case Call(rule):
                key = ("call", rule)
            case _:
                return node
        return self._known.setdefault(key, node)


def _spell(leaf: Expr, vocabulary: Vocabulary) -> Expr:
    match leaf:
        case Bytes(data):
            vocabulary.check_spelling(data)
        case ByteSet(mask):
            return ByteSet(mask & vocabulary.alphabet) if mask & vocabulary.alphabet else NEVER
        case Chars(ranges):
            spelled = characters.utf8(ranges, vocabulary.alphabet)
            if spelled is NEVER:
                low, high = ranges[0]
                raise GrammarError(
                    f"the vocabulary of {vocabulary.size:,} tokens can spell no character of the set that begins "
                    f"with U+{low:04X} to U+{high:04X}: leave the set out, or use a model that knows them"
                )
            return spelled
    return leaf


def _used(rules: Rules) -> list[tuple[str, Expr]]:
    """The rules that the root needs, callers mostly before what they call."""
    calls = {name: set(_calls(expr)) for name, expr in rules.rules.items()}
    for name, called in calls.items():
        missing = called - calls.keys()
        if missing:
            raise GrammarError(f"rule {name!r} uses {min(missing)!r}, which is not defined: define it")
    used = {rules.root: None}
    todo = [rules.root]
    while todo:
        more = sorted(calls[todo.pop()] - used.keys())
        used.update(dict.fromkeys(more))
        todo.extend(more)
    return [(name, rules.rules[name]) for name in used]


def byte_classes(rules: Rules) -> list[int]:
    """For each byte the least byte that every set and literal of the rules treats alike."""
    sets = {leaf.mask for expr in rules.rules.values() for leaf in _leaves(expr) if isinstance(leaf, ByteSet)}
    literals = {leaf.data for expr in rules.rules.values() for leaf in _leaves(expr) if isinstance(leaf, Bytes)}
    classes = [(1 << 256) - 1]
    for mask in sets.union(1 << byte for data in literals for byte in data):
        classes = [part for each in classes for part in (each & mask, each & ~mask) if part]
    least = [0] * 256
    for each in classes:
        for byte in range(256):
            if each >> byte & 1:
                least[byte] = (each & -each).bit_length() - 1
    return least


def _calls(expr: Expr) -> Iterator[str]:
    """The rules named anywhere in an expression."""
    return (leaf.rule for leaf in _leaves(expr) if isinstance(leaf, Call))


def _first_calls(expr: Expr, nullable: frozenset[str]) -> Iterator[str]:
    """The rules that may be called before any byte is read."""

    def parts(node: Seq) -> tuple[Expr, ...]:
        return (node.head, node.tail) if is_nullable(node.head, nullable) else (node.head,)

    return (leaf.rule for leaf in _leaves(expr, parts) if isinstance(leaf, Call))


def repetitions(expr: Expr) -> Iterator[Repeat]:
    """The repetitions in an expression, each once."""
    return (node for node in _nodes(expr, _both) if isinstance(node, Repeat))


def _both(node: Seq) -> tuple[Expr, ...]:
    return (node.head, node.tail)


def _leaves(expr: Expr, parts: Callable[[Seq], tuple[Expr, ...]] = _both) -> Iterator[Bytes | ByteSet | Chars | Call]:
    """The leaves of an expression, each once."""
    return (node for node in _nodes(expr, parts) if isinstance(node, (Bytes, ByteSet, Chars, Call)))


def _nodes(expr: Expr, parts: Callable[[Seq], tuple[Expr, ...]]) -> Iterator[Expr]:
    """An expression and what it consists of, each once."""
    seen: set[int] = set()
    todo = [expr]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case Alt(options):
                todo.extend(options)
            case Repeat(body, _, _):
                todo.append(body)
            case Seq():
                todo.extend(parts(node))
        yield node


def first_calls_order(rules: dict[str, Expr]) -> list[str]:
    """The rules, each before those that it may begin with. ``GrammarError`` for one that begins with itself."""
    nullable = nullable_rules(rules)
    first = {name: set(_first_calls(expr, nullable)) for name, expr in rules.items()}
    done: dict[str, None] = {}
    for start in rules:
        path: list[str] = []
        todo = [(start, False)]
        while todo:
            name, leaving = todo.pop()
            if leaving:
                done[path.pop()] = None
            elif len(path) > _MAX_CHAIN:
                raise GrammarError(
                    f"{path[0]!r} begins with {path[1]!r}, and so on for more than {_MAX_CHAIN} rules, the last "
                    f"{name!r}: write some of them out where they are used"
                )
            elif name in path:
                cycle = " -> ".join([*path[path.index(name) :], name])
                raise GrammarError(
                    f"left recursion: {cycle}, with nothing read between: put what repeats last, "
                    "as in list ::= item list | item, or write item+"
                )
            elif name not in done:
                path.append(name)
                todo.append((name, True))
                todo.extend((called, False) for called in sorted(first[name]))
    return [*reversed(done)]
