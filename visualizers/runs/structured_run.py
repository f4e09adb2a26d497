"""The bundled model writing under a grammar: at each token, what it would say itself and what the mask leaves.

The masks are those of `minillm.grammar`, tokens left in view; the draws are the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.backends.plans import Chunk, plan_of
from minillm.core.sampling import SamplingParams, sample, uniform
from minillm.core.sampling.shaping import Transform, mask_bytes
from minillm.grammar import CompiledGrammar
from minillm.grammar.automaton import State
from minillm.structured import Kind, compile_grammar, vocabulary_of
from visualizers.formats import with_unit
from visualizers.runs.next_token import BLOCK_SIZE, MODEL, Model, model, visible

__all__ = ["GRAMMARS", "MODEL", "Moment", "Source", "moments"]

SEED = 3
MAX_TOKENS = 34
SHOWN = 5  # tokens with a bar of their own, of the model's likeliest and of the likeliest that are allowed
END = "end of text"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """A grammar, and what the model is asked to write with it."""

    title: str
    kind: Kind
    text: Any
    prompt: str
    max_tokens: int


GRAMMARS = {
    "schema": Source(
        "JSON schema",
        "json_schema",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 12},
                "state": {"enum": ["Maine", "Ohio", "Texas"]},
                "votes": {"type": "integer", "minimum": 0, "maximum": 999},
            },
            "required": ["name", "state", "votes"],
        },
        "The members of the Senate and their states: ",
        MAX_TOKENS,
    ),
    "regex": Source(
        "regular expression",
        "regex",
        "(January|March|May|July) [1-3][0-9]?, 1[789][0-9]{2}",
        "The act was signed on ",
        MAX_TOKENS,
    ),
    "gbnf": Source(
        "grammar with brackets",
        "gbnf",
        'root ::= item (" and " item)*\nitem ::= word | "(" root ")"\nword ::= [a-z]{3,9}',
        "The duties of the Government are ",
        MAX_TOKENS,
    ),
}


@dataclass(frozen=True)
class Token:
    """One of the vocabulary, or several together: the chance by the model alone, and what the mask makes of it."""

    text: str
    before: float
    after: float
    is_allowed: bool
    is_many: bool = False


@dataclass(frozen=True)
class Moment:
    """Just before a token is drawn."""

    so_far: str
    vocabulary: int
    tokens: tuple[Token, ...]  # the likeliest of the model's own and of those allowed, then the others together
    num_allowed: int
    kept_mass: float  # share of the model's own probability that the mask leaves
    num_allowed_by_grammar: int  # however many tokens are left
    tokens_left: int
    tokens_to_finish: int
    depth: int  # rules that are open and not finished
    drawn: str  # empty where nothing can follow


@cache
def grammar(name: str) -> CompiledGrammar:
    source = GRAMMARS[name]
    tokenizer = model().tokenizer
    compiled = compile_grammar(
        source.kind, source.text, vocabulary_of(tokenizer, model().backend.capacity().vocab_size)
    )
    if not isinstance(compiled, CompiledGrammar):
        raise TypeError("the figure looks into the states of the engine's own grammars")
    return compiled


@cache
def moments(name: str) -> tuple[Moment, ...]:
    """One output, token by token, and the end where nothing but the end can follow."""
    source, found = GRAMMARS[name], model()
    compiled = grammar(name)
    prompt = found.tokenizer.encode(source.prompt)
    state, output = compiled.start(), list[int]()
    result: list[Moment] = []
    while True:
        left = source.max_tokens - len(output)
        moment, drawn = _moment(found, compiled, state, prompt, output, left)
        result.append(moment)
        after = None if drawn is None else compiled.advance(state, drawn)
        if drawn is None or after is None or drawn in compiled.eos_ids:
            return tuple(result)
        state, output = after, [*output, drawn]


def _moment(
    found: Model, compiled: CompiledGrammar, state: State, prompt: list[int], output: list[int], left: int
) -> tuple[Moment, int | None]:
    """And the token that the engine draws there."""
    ids = [*prompt, *output]
    blocks = list(range(1, found.num_blocks + 1))
    logits = found.backend.logits(plan_of([Chunk(ids, blocks)], BLOCK_SIZE))[0].astype(np.float64)
    weights = np.exp(logits - logits.max())
    own = weights / weights.sum()
    is_over = compiled.is_finished(state) or left == 0
    allowed = compiled.allowed(state, left) if left else compiled.vocabulary.eos_mask
    bits = np.unpackbits(np.frombuffer(mask_bytes(allowed, len(own)), np.uint8), bitorder="little")[: len(own)]
    params = SamplingParams(temperature=1, seed=SEED)
    drawn = None
    if not is_over:
        drawn = sample(logits.tolist(), params, uniform(SEED, len(output)), Transform(allowed=allowed))
    text = found.tokenizer.decode(output) if output else ""
    moment = Moment(
        so_far=text,
        vocabulary=len(own),
        tokens=_shown(found, compiled, own, bits),
        num_allowed=allowed.bit_count(),
        kept_mass=float(own @ bits),
        num_allowed_by_grammar=compiled.allowed(state).bit_count(),
        tokens_left=left,
        tokens_to_finish=compiled.tokens_to_finish(state),
        depth=depth(state),
        drawn="" if drawn is None else _label(found, compiled, drawn),
    )
    return moment, drawn


def _shown(found: Model, compiled: CompiledGrammar, own: Floats, bits: NDArray[np.uint8]) -> tuple[Token, ...]:
    kept = float(own @ bits)
    ranked = np.argsort(-own, kind="stable")
    chosen = {int(i) for i in [*ranked[:SHOWN], *[i for i in ranked if bits[i]][:SHOWN]]}
    tokens: list[Token] = []
    for i in (int(i) for i in ranked if int(i) in chosen):
        text = _label(found, compiled, i)
        # Parts of characters look alike: two rows of one name would be drawn as one.
        text = f"{text} ({i})" if any(token.text == text for token in tokens) else text
        tokens.append(Token(text, float(own[i]), float(own[i] * bits[i] / kept), bool(bits[i])))
    rest = np.ones(len(own), np.uint8)
    rest[list(chosen)] = 0
    for is_allowed, name in ((True, "allowed"), (False, "not")):
        others = rest & (bits if is_allowed else 1 - bits)
        if others.any():
            mass = float(own @ others)
            tokens.append(
                Token(
                    with_unit(int(others.sum()), "others") + f" {name}",
                    mass,
                    mass / kept * is_allowed,
                    is_allowed,
                    True,
                )
            )
    return tuple(tokens)


def depth(state: State) -> int:
    """Rules that were begun and are not finished, the deepest way of reading."""
    deepest = 0
    todo = [(callers, 1) for callers, _ in state.places]
    while todo:
        callers, level = todo.pop()
        deepest = max(deepest, level)
        todo.extend((back, level + 1) for back, _ in callers.frames)
    return deepest


def _label(found: Model, compiled: CompiledGrammar, token_id: int) -> str:
    if token_id in compiled.eos_ids:
        return END
    return visible(found.tokenizer.token_bytes(token_id))
