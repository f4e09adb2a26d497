"""One request on the real engine while it runs: the time of each token, the blocks that its cache holds.

:class:`Run` is the engine between two looks at it: a notebook calls ``advance`` again and again and draws
``data`` in between. The figure on a page is one such run, recorded at build and cut after a number of tokens.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import altair as alt

from minillm.core.config import EngineConfig
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from visualizers.charts import colour_scale, rows
from visualizers.contract import Choice, Column, Data, Number, Table, Text, Visualizer

MODEL = "tiny"
PROMPT = "My fellow citizens, the state of the Union"
SHOWN_TOKENS = 48  # of the run on a page
STOPS = (1, 2, 3, *range(4, SHOWN_TOKENS + 1, 2))
ATTEMPTS = 5  # runs of which the least disturbed is kept
MAX_CHARACTERS = 600
POOL_TOKENS = 512  # KV memory of the engine: fits the longest prompt and its answer
TEMPERATURE, SEED = 0.7, 7  # lively, yet the same text in every run
PREFILL, DECODE = "first token: the whole prompt is computed", "each further token"
FILLED, RESERVED = "holds a token", "reserved, still empty"


@dataclass(frozen=True)
class Moment:
    """The engine just after an output token: seconds since the request came, its text, the cache."""

    time_s: float
    text: str
    cached_tokens: int  # tokens whose keys and values are stored
    used_blocks: int


class Run:
    """One prompt on an engine of its own. Not started before the first :meth:`advance`."""

    def __init__(
        self,
        prompt: str,
        *,
        block_size: int = 16,
        max_tokens: int = SHOWN_TOKENS,
        temperature: float = TEMPERATURE,
        backend: str = "numpy",
        device: str = "cpu",
    ) -> None:
        config = EngineConfig(block_size=block_size, num_blocks=POOL_TOKENS // block_size + 1)
        self.block_size = block_size
        self._llm = LLM(MODEL, backend=backend, device=device, config=config)
        self._ids = self._llm.encode(prompt)
        self._params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=SEED)
        _warm_up(self._llm)
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

    def advance(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> bool:
        """Runs whole steps of the engine for about ``seconds``, at least one; returns whether it goes on."""
        engine, end_s = self._llm.engine, clock() + seconds
        # Submitted here and not before, since the time to the first token counts from now.
        request = self._request = self._request or engine.add_request(self._ids, self._params)
        while not request.is_finished:
            for event in engine.step():
                if event.kind == "token":
                    stored, usage = request.num_computed, engine.kv_usage()
                    time_s = event.time_s - request.arrival_s
                    # The last token ends the request, which gives its blocks back at once.
                    blocks = usage.used_blocks or -(-stored // self.block_size)
                    self._moments.append(Moment(time_s, event.text, stored, blocks))
            if clock() >= end_s:
                break
        return self.goes_on

    def stop(self) -> None:
        """Ends the request; its blocks go back to the pool."""
        if self._request and self._llm.engine.abort(self._request.request_id):
            self._llm.engine.step()

    def data(self, tokens: int | None = None) -> Data:
        """What the figure shows after the first ``tokens`` output tokens, by default all there are."""
        moments = self._moments[:tokens]
        last = moments[-1] if moments else Moment(0.0, "", 0, 0)
        gaps = [b.time_s - a.time_s for a, b in pairwise(moments)]
        decode_s = sum(gaps)
        block_bytes = self.block_size * self._llm.engine.capacity.kv_bytes_per_token
        return Data(
            values={
                "prompt_tokens": len(self._ids),
                "output_tokens": len(moments),
                "ttft_s": moments[0].time_s if moments else 0.0,
                "itl_s": gaps[-1] if gaps else 0.0,
                "tpot_s": decode_s / len(gaps) if gaps else 0.0,
                "tokens_per_s": len(gaps) / decode_s if decode_s else 0.0,
                "kv_blocks": last.used_blocks,
                "kv_bytes": last.used_blocks * block_bytes,
                "stored_tokens": last.cached_tokens,
                "text": "".join(moment.text for moment in moments),
            },
            rows={"tokens": self._token_rows(moments, block_bytes), "blocks": self._block_rows(last)},
        )

    def _token_rows(self, moments: list[Moment], block_bytes: int) -> list[dict[str, Any]]:
        records, before_s = [], 0.0
        for number, moment in enumerate(moments, start=1):
            records.append(
                {
                    "token": number,
                    "text": moment.text,
                    "ms": (moment.time_s - before_s) * 1e3,
                    "phase": PREFILL if number == 1 else DECODE,
                    "blocks": moment.used_blocks,
                    "bytes": moment.used_blocks * block_bytes,
                }
            )
            before_s = moment.time_s
        return records

    def _block_rows(self, moment: Moment) -> list[dict[str, Any]]:
        """Two parts of each block that the request holds: slots with a token, slots without."""
        records = []
        for block in range(moment.used_blocks):
            filled = min(self.block_size, moment.cached_tokens - block * self.block_size)
            parts = ((FILLED, 0, filled), (RESERVED, filled, self.block_size))
            records += [{"block": block + 1, "part": part, "from": a, "to": b} for part, a, b in parts if a < b]
        return records


def _warm_up(llm: LLM) -> None:
    """One token of another prompt: a first run pays for memory that no later one touches anew."""
    llm.generate("a", SamplingParams(max_tokens=2, temperature=0))


@lru_cache(maxsize=16)
def recorded(prompt: str, block_size: int) -> Run:
    """A whole run, from which a figure's states after fewer tokens are cut: the quickest of ``ATTEMPTS``.

    Other work on the machine only ever adds time, so the quickest is the nearest to the engine's own.
    """
    runs = [Run(prompt, block_size=block_size) for _ in range(ATTEMPTS)]
    for run in runs:
        while run.advance(1.0):
            pass
    return min(runs, key=lambda run: run.seconds)


def compute(inputs: Mapping[str, Any]) -> Data:
    """The run of the inputs' prompt after ``tokens`` output tokens."""
    return recorded(inputs["prompt"], int(inputs["block_size"])).data(int(inputs["tokens"]))


def figure(data: Data) -> alt.VConcatChart:
    """The time of each token above, the blocks that the request holds below."""
    shown = max(SHOWN_TOKENS, len(data.rows["tokens"]))
    times = (
        alt.Chart(rows("tokens"), height=150)
        .mark_bar(width={"band": 0.8})
        .encode(
            x=alt.X("token:O", scale=alt.Scale(domain=list(range(1, shown + 1))), axis=_sparse_axis("output token")),
            y=alt.Y("ms:Q", title="milliseconds"),
            color=alt.Color("phase:N", scale=colour_scale({PREFILL: "prefill", DECODE: "decode"})),
        )
    )
    blocks = (
        alt.Chart(rows("blocks"), height=90)
        .mark_bar(width={"band": 0.8})
        .encode(
            x=alt.X("block:O", title="KV block"),
            y=alt.Y("from:Q", title="tokens in the block", axis=alt.Axis(tickCount=3, format="d")),
            y2="to:Q",
            color=alt.Color("part:N", scale=colour_scale({FILLED: "kv", RESERVED: "free"})),
        )
    )
    chart: alt.VConcatChart = alt.vconcat(times, blocks, spacing=24).resolve_scale(color="independent")
    return chart


def _sparse_axis(title: str) -> alt.Axis:
    return alt.Axis(
        title=title, labelAngle=0, labelExpr="datum.value % 8 === 0 || datum.value === 1 ? datum.label : ''"
    )


def table(data: Data) -> Table:
    columns = (
        Column("token", "Token", format="int"),
        Column("text", "Text"),
        Column("ms", "Time", "ms", "sig3"),
        Column("blocks", "KV blocks", format="int"),
        Column("bytes", "KV memory", format="bytes"),
    )
    return Table(columns, data.rows["tokens"])


def sentence(data: Data) -> str:
    """What to see. A run of one token has no gap between tokens yet."""
    start = "The prompt's {prompt_tokens|int} tokens were computed at once: the first token came after {ttft_s|seconds}"
    rest = ", each further one after {tpot_s|seconds} ({tokens_per_s|sig3} tokens/s)"
    end = ". The cache holds {kv_blocks|int} blocks, {kv_bytes|bytes}. The model wrote: “{text}”"
    return start + (rest if data.values["output_tokens"] > 1 else "") + end


def provenance() -> str:
    """The run that the page shows."""
    machine = platform.processor() or platform.machine()
    return (
        f"The quickest of {ATTEMPTS} runs of the model {MODEL} on the NumPy engine, {machine}, "
        f"Python {platform.python_version()}, temperature {TEMPERATURE}, seed {SEED}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="live-run",
    title="A request, token by token",
    badge="run",
    chapters=("0.3", "1.5"),
    summary="The time of each output token of one request, and the cache blocks that it holds meanwhile.",
    formula=(
        "engine.add_request(prompt); engine.step() until it ends\n"
        "time to first token = first token - arrival; time of a further token = its gap to the one before\n"
        "blocks = ceil(stored tokens / block size)"
    ),
    inputs=(
        Text("prompt", "Prompt", PROMPT, MAX_CHARACTERS, "What the model goes on from."),
        Number(
            "tokens",
            "Output tokens so far",
            "tokens",
            SHOWN_TOKENS,
            1,
            SHOWN_TOKENS,
            "How far into the run to look.",
            instant="grid",
            stops=STOPS,
        ),
        Choice(
            "block_size",
            "Block size",
            "16",
            {"4": "4", "16": "16", "32": "32"},
            "Slots of a KV block: small blocks fit closely, large ones waste the end of the last.",
            unit="tokens",
        ),
    ),
    units={
        "prompt_tokens": "tokens",
        "output_tokens": "tokens",
        "ttft_s": "s",
        "itl_s": "s",
        "tpot_s": "s",
        "tokens_per_s": "tokens/s",
        "kv_blocks": "blocks",
        "kv_bytes": "bytes",
        "stored_tokens": "tokens",
        "text": "",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    live=True,
    source=("minillm.core.engine", "minillm.core.scheduler", "minillm.backends.numpy_backend"),
)
