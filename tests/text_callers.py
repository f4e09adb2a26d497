"""Random texts in random pieces, and where they must end by the definition of a stop."""

from __future__ import annotations

import codecs
import random

from minillm.core.detokenizer import Detokenizer
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.core.stops import commit_tokens

EOS = 0


class Bytes:
    """A tokenizer of given byte strings."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def expected_end(
    pieces: list[bytes], tokens: list[int], stop: tuple[str, ...], min_tokens: int, max_tokens: int
) -> tuple[int, str, str]:
    """How many tokens come out, their text, and the reason: token by token, each time from the beginning."""
    text, decoder = "", codecs.getincrementaldecoder("utf-8")(errors="replace")
    for count, token in enumerate(tokens, start=1):
        if token == EOS:
            return count, text + decoder.decode(b"", final=True), "stop"
        before, text = len(text), text + decoder.decode(pieces[token])
        found = [
            (start + len(one), start)
            for one in stop
            for start in range(len(text))
            if text.startswith(one, start) and start + len(one) > before
        ]
        if found and count >= min_tokens:
            return count, text[: min(found)[1]], "stop"
        if count == max_tokens:
            return count, text + decoder.decode(b"", final=True), "length"
    raise AssertionError("max_tokens are not reached")


def random_texts(seeds: range) -> None:
    """Tokens that come several at once, as drafts do: their texts joined are the text, cut where it ends."""
    for seed in seeds:
        rng = random.Random(seed)
        whole = [text.encode() for text in rng.sample(["a", "b", "ab", "ba", "aba", "abab", "é", "日", "", "éa"], 5)]
        half, other = "é".encode()[:1], "é".encode()[1:]
        pieces = [b"<eos>", *whole, half, other, b"a" + half, b"\xff"]
        stop = tuple(rng.sample(["a", "b", "ab", "ba", "aba", "abab", "bé", "日", "éa"], rng.randint(0, 3)))
        max_tokens = rng.randint(1, 12)
        min_tokens = rng.choice([0, 0, rng.randint(0, max_tokens)])
        tokens = [rng.choice([*range(1, len(pieces))] * 3 + [EOS]) for _ in range(max_tokens + 3)]
        params = SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=min_tokens, stop=stop)
        request = Request(
            *("q", [1], params), arrival_s=0.0, index=0, seed=0, max_total_tokens=99, stop_ids=frozenset({EOS})
        )
        detokenizer, chunks, reason, at = Detokenizer(Bytes(pieces), stop), [], None, 0
        while reason is None:
            step = tokens[at : at + rng.randint(1, 4)]
            assert step, "I30: no end at max_tokens"
            committed = commit_tokens(request, step, detokenizer=detokenizer, time_s=0.0)
            chunks += [*(text for _, text in committed.tokens), committed.last_text]
            reason, at = committed.finish_reason, at + len(step)
        count, text, why = expected_end(pieces, tokens, stop, min_tokens, max_tokens)
        assert request.output_ids == tokens[:count], "I30: more than there may be"
        assert "".join(chunks) == request.text == text, "I31: the text"
        assert reason == why
        assert "\ufffd" not in request.text or "\ufffd" in text, "I32: half a character"
