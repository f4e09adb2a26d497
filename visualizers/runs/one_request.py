"""One request on an engine of its own, between two looks at it: what a live figure advances and draws.

A notebook calls :meth:`Run.advance` again and again and draws :meth:`Run.data` in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from minillm.core.config import EngineConfig
from minillm.core.request import Event, Request
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from visualizers.contract import Data
from visualizers.levels.words import measured
from visualizers.runs import bundled
from visualizers.runs.measure import one_thread, process_bytes

MODEL = "tiny"
POOL_TOKENS = 512  # KV memory of the engine: fits the longest prompt and its answer
TEMPERATURE, SEED = 0.7, 7  # lively, yet the same text in every run
PROMPT, PREFILL, DECODE = "prompt", "first token: prefill", "further tokens: decode"
FILLED, RESERVED = "holds a token", "reserved, still empty"
PROMPT_WORDS = 10  # tokens of the prompt that are shown, its last ones


@dataclass(frozen=True)
class Moment:
    """The engine just after an output token: seconds since the request came, its text, the cache."""

    time_s: float
    text: str
    cached_tokens: int  # tokens whose keys and values are stored
    used_blocks: int
    process_bytes: int | None = None  # memory of this process; None where that is not known


class Stopwatch:
    """The engine's clock here: it stands still between two pieces of work, so that no drawing counts as waiting."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._before_s, self._since_s = clock, 0.0, clock()
        self._runs = False

    def __call__(self) -> float:
        return self._before_s + (self._clock() - self._since_s if self._runs else 0.0)

    def start(self) -> None:
        self._since_s, self._runs = self._clock(), True

    def stop(self) -> None:
        self._before_s, self._runs = self(), False


class Run:
    """One prompt on an engine of its own. Not started before the first :meth:`advance`."""

    def __init__(
        self,
        prompt: str,
        *,
        block_size: int = 16,
        max_tokens: int,
        temperature: float = TEMPERATURE,
        backend: str = "numpy",
        device: str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = EngineConfig(block_size=block_size, num_blocks=POOL_TOKENS // block_size + 1)
        self.prompt, self.block_size = prompt, block_size
        self._llm = LLM(MODEL, backend=backend, device=device, config=config)
        self._ids = self._llm.encode(prompt)
        self._params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=SEED)
        _warm_up(self._llm)
        self._llm.engine.clock = self._watch = Stopwatch(clock)
        self._request: Request | None = None
        self._moments: list[Moment] = []

    @property
    def goes_on(self) -> bool:
        return self._request is None or not self._request.is_finished

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length`` or ``abort``; empty while it goes on."""
        return (self._request and self._request.finish_reason) or ""

    @property
    def seconds(self) -> float:
        """From the request's arrival to its last token so far."""
        return self._moments[-1].time_s if self._moments else 0.0

    def advance(self, seconds: float, tokens: int | None = None) -> bool:
        """Runs steps for about ``seconds`` or ``tokens`` more tokens, at least one; returns whether it goes on."""
        engine, watch = self._llm.engine, self._watch
        watch.start()
        end_s = watch() + seconds
        # Submitted here and not before, since the time to the first token counts from now.
        request = self._request = self._request or engine.add_request(self._ids, self._params)
        enough = math.inf if tokens is None else len(self._moments) + tokens
        with one_thread():
            while not request.is_finished:
                self._note(request, engine.step())
                if watch() >= end_s or len(self._moments) >= enough:
                    break
        watch.stop()
        return self.goes_on

    def _note(self, request: Request, events: list[Event]) -> None:
        for event in events:
            if event.kind == "token":
                stored, used = request.num_computed_tokens, self._llm.engine.kv_usage().used_blocks
                # The last token ends the request, which gives its blocks back at once.
                blocks = used or -(-stored // self.block_size)
                time_s = event.time_s - request.arrival_s
                self._moments.append(Moment(time_s, event.text, stored, blocks, process_bytes()))

    def stop(self) -> None:
        """Ends the request; its blocks go back to the pool."""
        if self._request and self._llm.engine.abort(self._request.request_id):
            self._llm.engine.step()

    def data(self, tokens: int | None = None) -> Data:
        """What the figure shows after the first ``tokens`` output tokens, by default all there are."""
        moments = self._moments[:tokens]
        end_s = self._moments[-1].time_s if self._moments else 0.0
        last = moments[-1] if moments else Moment(0.0, "", 0, 0)
        gaps = [b.time_s - a.time_s for a, b in pairwise(moments)]
        decode_s = sum(gaps)
        block_bytes = self.block_size * self._llm.engine.capacity.kv_bytes_per_token
        return Data(
            values={
                "prompt_tokens": len(self._ids),
                "output_tokens": len(moments),
                "planned_tokens": self._params.max_tokens,
                "ttft_s": moments[0].time_s if moments else 0.0,
                **dict.fromkeys(("ttft_low_s", "ttft_high_s"), moments[0].time_s if moments else 0.0),
                **dict.fromkeys(("tpot_low_s", "tpot_high_s"), decode_s / len(gaps) if gaps else 0.0),
                "itl_s": gaps[-1] if gaps else 0.0,
                "tpot_s": decode_s / len(gaps) if gaps else 0.0,
                "tokens_per_s": len(gaps) / decode_s if decode_s else 0.0,
                "kv_blocks": last.used_blocks,
                "kv_bytes": last.used_blocks * block_bytes,
                "stored_tokens": last.cached_tokens,
                "text": "".join(moment.text for moment in moments),
            },
            rows={
                "tokens": self._token_rows(moments, block_bytes),
                "words": [*self._prompt_rows(), *self._word_rows(moments)],
                "blocks": self._block_rows(last),
                "held": self._held_rows(moments),
                "stored": self._stored_rows(moments),
                "process": _process_rows(moments),
                "extent": [{"ms": round(1e3 * end_s, 3), "slots": self._slots()}],
            },
        )

    def _slots(self) -> int:
        """Of the blocks that the whole request will hold, prompt and answer."""
        longest = len(self._ids) + (self._params.max_tokens or 0)
        return -(-longest // self.block_size) * self.block_size

    def _prompt_rows(self) -> list[dict[str, Any]]:
        """The last tokens of the prompt as words."""
        shown = self._ids[-PROMPT_WORDS:]
        more = [f"{len(self._ids) - len(shown):,} tokens"] if len(shown) < len(self._ids) else []
        return [
            {"kind": PROMPT, "group": "prompt", **measured(text)}
            for text in [*more, *(bundled.decode([token_id]) for token_id in shown)]
        ]

    def _word_rows(self, moments: list[Moment]) -> list[dict[str, Any]]:
        return [
            {"kind": PREFILL if number == 1 else DECODE, "group": str(number), **measured(moment.text)}
            for number, moment in enumerate(moments, start=1)
        ]

    def _held_rows(self, moments: list[Moment]) -> list[dict[str, Any]]:
        """Each block from the token for which it was taken: its slots, and from when to when it is held."""
        found: list[dict[str, Any]] = []
        start_s = 0.0
        for moment in moments:
            for block in range(len(found), moment.used_blocks):
                low = block * self.block_size
                found.append({"start": round(1e3 * start_s, 3), "low": low, "high": low + self.block_size})
            start_s = moment.time_s
        return [{**block, "end": round(1e3 * start_s, 3)} for block in found]

    def _stored_rows(self, moments: list[Moment]) -> list[dict[str, Any]]:
        """How many tokens have their keys and values stored, from each token's time on."""
        return [{"ms": round(1e3 * m.time_s, 3), "tokens": m.cached_tokens} for m in moments]

    def _token_rows(self, moments: list[Moment], block_bytes: int) -> list[dict[str, Any]]:
        records, before_s = [], 0.0
        for number, moment in enumerate(moments, start=1):
            records.append(
                {
                    "token": number,
                    "text": moment.text,
                    "start": round(1e3 * before_s, 3),
                    "end": round(1e3 * moment.time_s, 3),
                    "group": str(number),
                    "ms": (moment.time_s - before_s) * 1e3,
                    "phase": PREFILL if number == 1 else DECODE,
                    "blocks": moment.used_blocks,
                    "bytes": moment.used_blocks * block_bytes,
                }
            )
            before_s = moment.time_s
        return records

    def _block_rows(self, moment: Moment) -> list[dict[str, Any]]:
        """The slots of each block that the request holds, end to end: those with a token, those without."""
        records = []
        for block in range(moment.used_blocks):
            start, end = block * self.block_size, (block + 1) * self.block_size
            filled = min(end, moment.cached_tokens)
            parts = ((FILLED, start, filled), (RESERVED, filled, end))
            records += [{"end": end, "part": part, "from": a, "to": b} for part, a, b in parts if a < b]
        return records


def middle(runs: Sequence[Run]) -> Run:
    """The first of ``runs`` of one prompt, each gap of it the median over all: the runs differ in times alone."""
    first = runs[0]
    if any([m.text for m in run._moments] != [m.text for m in first._moments] for run in runs):
        raise RuntimeError("two runs of one prompt wrote different texts: their times cannot be compared")
    time_s, found = 0.0, []
    for i, moment in enumerate(first._moments):
        time_s += median(run._moments[i].time_s - (run._moments[i - 1].time_s if i else 0.0) for run in runs)
        found.append(replace(moment, time_s=time_s))
    first._moments = found
    return first


def _process_rows(moments: list[Moment]) -> list[dict[str, Any]]:
    known = [(m.time_s, m.process_bytes) for m in moments if m.process_bytes is not None]
    return [{"ms": round(1e3 * time_s, 3), "mib": round(size / 2**20, 1)} for time_s, size in known]


def _warm_up(llm: LLM) -> None:
    """One token of another prompt: a first run pays for memory that no later one touches anew."""
    with one_thread():
        llm.generate("a", SamplingParams(max_tokens=2, temperature=0))
