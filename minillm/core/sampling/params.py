"""What a user may ask about the choice of tokens and the end of an output, validated where it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from minillm.grammar import Grammar

_MAX_SEED = (1 << 64) - 1
# Beam search ranks by the model's own log-probabilities and draws nothing: these would be ignored.
_NOT_WITH_BEAMS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "bad_words", "grammar", "best_of", "seed", "stop"),
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it stops. Invalid values raise ``ValueError``.

    `minillm.core.sampling` has the order in which the fields act. Lists are taken for tuples, and a mapping
    for ``logit_bias``; they are kept as tuples, so parameters are hashable and cannot change.
    """

    temperature: float = 1.0  # 0 is greedy: the highest logit, the lowest id on a tie
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest head whose probabilities reach top_p, at least one token
    min_p: float = 0.0  # keep tokens with at least min_p times the highest probability
    typical_p: float = 1.0  # keep the tokens nearest to the expected surprise until they reach this probability

    repetition_penalty: float = 1.0  # logits of prompt and output tokens: divided if above 0, else multiplied
    presence_penalty: float = 0.0  # subtracted from the logit of every token that was output
    frequency_penalty: float = 0.0  # subtracted once for each time that it was output
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # added to the logits of these ids
    # Never output, as text (which needs a tokenizer: see `minillm.llm`) or as a sequence of token ids.
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    grammar: Grammar | None = field(default=None, repr=False)  # what the whole output has to match

    n: int = 1  # outputs of one prompt; each of them draws from its own stream of numbers
    best_of: int | None = None  # so many are sampled, and those n returned whose tokens are the most likely
    beam_width: int | None = None  # beam search: the n best of so many hypotheses. Needs temperature 0
    length_penalty: float = 1.0  # beam search ranks by (sum of log-probabilities) / tokens ** length_penalty

    seed: int | None = None  # None: derived from the engine's seed and the request's place in the queue
    max_tokens: int = 16
    min_tokens: int = 0  # before so many are out, no stop string counts and no stopping id can be drawn
    stop: tuple[str, ...] = ()  # the output text ends before the first of these
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # log-probabilities of each output token and of so many of the most likely
    prompt_logprobs: int | None = None  # the same for every token of the prompt but the first

    is_plain: bool = field(init=False, repr=False, compare=False)  # nothing shapes the logits, nothing is wanted back

    def __post_init__(self) -> None:
        for name in ("logit_bias", "bad_words", "stop", "stop_token_ids"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        self._check_distribution()
        self._check_shaping()
        self._check_ends()
        self._check_outputs()
        object.__setattr__(self, "is_plain", self._is_plain())

    @property
    def num_sequences(self) -> int:
        """How many outputs are generated for the prompt, of which ``n`` are returned."""
        return self.beam_width or self.best_of or self.n

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _is_plain(self) -> bool:
        shapes = self.has_penalties or self.logit_bias or self.bad_words or self.min_tokens
        wants = self.logprobs is not None or self.prompt_logprobs is not None
        return self.grammar is None and not (shapes or wants or self.best_of or self.beam_width)

    def _check_distribution(self) -> None:
        _check_real("temperature", self.temperature, 0.0, math.inf, "use 0 for greedy, 1 for the model's own")
        for name in ("top_p", "typical_p"):
            _check_real(name, getattr(self, name), 0.0, 1.0, "use 1 to keep every token")
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0, it must be above 0 and at most 1: use temperature=0 for greedy")
        _check_real("min_p", self.min_p, 0.0, 1.0, "use 0 to keep every token")
        _check_int("top_k", self.top_k, 0, "use 0 to keep every token")

    def _check_shaping(self) -> None:
        # Bounded, so that no finite logit becomes infinite: that would fail the whole step.
        _check_real("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "use 1 for no penalty")
        # The limits are those of the OpenAI API, which vLLM keeps as well.
        for name in ("presence_penalty", "frequency_penalty"):
            _check_real(name, getattr(self, name), -2.0, 2.0, "use 0 for no penalty")
        ids = set()
        for token_id, bias in cast(tuple[tuple[int, float], ...], self.logit_bias):
            _check_int("logit_bias id", token_id, 0, "use ids of the tokenizer")
            _check_real(f"logit_bias of {token_id}", bias, -100.0, 100.0, "-100 bans a token, 100 demands it")
            if token_id in ids:
                raise ValueError(f"logit_bias has token {token_id} twice: give each token one bias")
            ids.add(token_id)
        for word in self.bad_words:
            if not word:
                raise ValueError(f"bad_words contains {word!r}: every word is a string or ids of at least one token")
            for token_id in () if isinstance(word, str) else word:
                _check_int("bad_words id", token_id, 0, "use ids of the tokenizer")

    def _check_ends(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, "ask for at least one token")
        _check_int("min_tokens", self.min_tokens, 0, "use 0 for no minimum")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens:,}, above max_tokens {self.max_tokens:,}: change one of them"
            )
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}: use True or False")
        for name in ("stop", "stop_token_ids", "ignore_eos"):
            if self.grammar is not None and getattr(self, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} beside a grammar, which alone says where the output ends: "
                    "leave it out"
                )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop contains {text!r}: every stop is a string of at least one character")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, "use ids of the tokenizer")

    def _check_outputs(self) -> None:
        if self.seed is not None:
            _check_int("seed", self.seed, 0, "use a whole number from 0 to 2**64 - 1, or None")
            if self.seed > _MAX_SEED:
                raise ValueError(f"seed is {self.seed}, above 2**64 - 1: use a smaller one")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, "use 0 for the token alone, None for nothing")
        _check_int("n", self.n, 1, "ask for at least one output")
        _check_real("length_penalty", self.length_penalty, -10.0, 10.0, "use 1 for the mean log-probability")
        if self.beam_width is not None:
            self._check_beams(self.beam_width)
            return
        if self.length_penalty != 1:
            raise ValueError(f"length_penalty is {self.length_penalty} without beam_width: only beam search has one")
        if self.best_of is not None:
            _check_int("best_of", self.best_of, 1, "use None to return all that are sampled")
            if self.best_of < self.n:
                raise ValueError(f"best_of is {self.best_of}, under n {self.n}: sample at least as many as you want")
        if self.num_sequences > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.num_sequences} samples at temperature 0 are all the same: raise the temperature, or use "
                f"beam_width"
            )

    def _check_beams(self, beam_width: int) -> None:
        _check_int("beam_width", beam_width, 1, "use None for no beam search")
        if self.n > beam_width:
            raise ValueError(f"n is {self.n}, beam_width {beam_width}: a search has at most beam_width outputs")
        if self.temperature != 0:
            raise ValueError(f"temperature is {self.temperature}, but beam search draws nothing: set it to 0")
        for entry in fields(self):
            if entry.name in _NOT_WITH_BEAMS and entry.name != "temperature":
                value = getattr(self, entry.name)
                if value != entry.default:
                    raise ValueError(f"{entry.name} is {value!r}, which beam search does not look at: leave it out")


def _frozen(name: str, value: object) -> tuple[object, ...]:
    """``value`` as a tuple: of pairs for a mapping, of tuples for sequences of ids."""
    if name == "logit_bias" and isinstance(value, Mapping):
        return tuple(value.items())
    if not isinstance(value, (tuple, list)):
        example = {"logit_bias": "{198: -100}", "stop_token_ids": "(2,)"}.get(name, "('\\n\\n',)")
        raise ValueError(f"{name} is {value!r}: give a tuple, for example {example}")
    if name == "logit_bias" and not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in value):
        raise ValueError(f"{name} is {value!r}: give a mapping, for example {{198: -100}}")
    if name == "bad_words" and not all(isinstance(word, (str, tuple, list)) for word in value):
        raise ValueError(f"{name} is {value!r}: every word is a string or a tuple of token ids")
    if name in ("logit_bias", "bad_words"):
        return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in value)
    return tuple(value)


def _check_real(name: str, value: object, low: float, high: float, way_out: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}, not a float: {way_out}")
    if not math.isfinite(value) or not low <= value <= high:
        limit = ""
        if low > -math.inf:
            limit = f" and at least {low:g}" if high == math.inf else f" and from {low:g} to {high:g}"
        raise ValueError(f"{name} is {value}, it must be finite{limit}: {way_out}")


def _check_int(name: str, value: object, low: int, way_out: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not an int: {way_out}")
    if value < low:
        raise ValueError(f"{name} is {value}, it must be at least {low}: {way_out}")
