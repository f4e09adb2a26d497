"""``LLM(model).generate(prompts)``: a model by name, its tokenizer and an engine behind one small object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, cast

from minillm import hub
from minillm.backends import create_backend
from minillm.config import Locations
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, Event, Request, RequestError
from minillm.core.grammar import Grammar, Vocabulary
from minillm.core.metrics import request_metrics
from minillm.core.sampling import SamplingParams
from minillm.download import Progress
from minillm.models.load import load_model
from minillm.structured import GrammarEngine, Kind, compile_grammar, vocabulary_of


@dataclass(frozen=True)
class Completion:
    """One finished request. Times are seconds of the engine's clock, counted from the request's arrival."""

    prompt: str
    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length", "abort" or "error"
    prompt_tokens: int
    cached_tokens: int  # tokens of the prompt that the prefix cache held
    preemptions: int
    ttft_s: float | None  # to the first token
    tpot_s: float | None  # (end to end - TTFT) / (tokens - 1); None for a single token
    e2e_s: float | None
    tokens_per_s: float | None  # 1 / TPOT: the decode rate, the first token left out
    error: str = ""
    matches_grammar: bool | None = None  # whether the text is whole by its grammar; None without one
    grammar_cut: bool = False  # whether the tokens left kept the grammar from going on as it could have


class LLM:
    """A loaded model and its engine. Not to be shared between threads.

    ``model`` is a name that ``minillm models`` lists, ``ORG/NAME`` fetched before, or a path. With
    ``backend="auto"`` the bundled models run on NumPy, others on torch where it is installed. ``say``
    and ``progress`` hear of a download.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        backend: str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        config: EngineConfig | None = None,
        where: Locations | None = None,
        say: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> None:
        self.model = model
        self.loaded = load_model(hub.resolve(model, where or Locations(), say=say, progress=progress))
        if backend == "auto":
            backend = "torch" if not self.loaded.bundled and find_spec("torch") else "numpy"
        self.tokenizer = self.loaded.tokenizer()
        self.backend_name = backend
        longest = None if config is None else config.max_model_len
        self.backend = create_backend(self.loaded, backend, dtype, device, max_model_len=longest)
        self.engine = Engine(self.backend, config, eos_ids=self.tokenizer.eos_ids, tokenizer=self.tokenizer)
        self._vocabulary: Vocabulary | None = None  # for grammars

    def generate(
        self,
        prompts: str | Sequence[str],
        params: SamplingParams | None = None,
        *,
        json_schema: dict[str, Any] | bool | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> list[Completion]:
        """Complete the prompts together, in one batch; the answers come in the order of the prompts.

        At most one of ``json_schema`` (parsed, or its text), ``regex`` and ``grammar`` (text in GBNF) says what each
        output has to match.

        Raises:
            RequestError: a prompt is empty or longer than the model takes; then none of them runs.
            GrammarError: the grammar is damaged or says what is not supported.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = params or SamplingParams()
        given = {"json_schema": json_schema, "regex": regex, "gbnf": grammar}
        sources = [(kind, source) for kind, source in given.items() if source is not None]
        if len(sources) + (params.grammar is not None) > 1:
            raise ValueError(f"{len(sources)} grammars beside params.grammar {params.grammar}: an output matches one")
        for kind, source in sources:
            params = replace(params, grammar=self.compile_grammar(cast(Kind, kind), source))
        requests = self._submit([self.encode(text) for text in texts], params)
        for _ in self.engine.run():
            pass
        return [completion(text, request) for text, request in zip(texts, requests, strict=True)]

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Iterator[Event]:
        """Events of one request as they come. Closing the iterator early aborts the request."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        (request,) = self._submit([ids], params or SamplingParams())
        try:
            for event in self.engine.run():
                if event.request_id == request.request_id:
                    yield event
        finally:
            if self.engine.abort(request.request_id):
                self.engine.step()

    def compile_grammar(self, kind: Kind, source: Any, engine: GrammarEngine = "minillm") -> Grammar:
        """A grammar for ``SamplingParams.grammar``, to be shared by requests. ``GrammarError`` as ``generate`` does."""
        if self._vocabulary is None:  # takes a part of a second for 50,000 tokens
            self._vocabulary = vocabulary_of(self.tokenizer, self.engine.capacity.vocab_size)
        return compile_grammar(kind, source, self._vocabulary, engine)

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, the beginning-of-text token first where the model was trained with one."""
        if not prompt:
            raise RequestError("the prompt is empty: give at least one character")
        ids = self.tokenizer.encode(prompt)
        return [self.tokenizer.bos_id, *ids] if self.tokenizer.adds_bos and self.tokenizer.bos_id is not None else ids

    def last_request(self) -> Request:
        """The request that was submitted last."""
        return next(reversed(self.engine.requests.values()))

    def close(self) -> None:
        self.backend.close()

    def _submit(self, prompts: list[list[int]], params: SamplingParams) -> list[Request]:
        requests: list[Request] = []
        try:
            for ids in prompts:
                requests.append(self.engine.add_request(ids, params))
        except RequestError:
            for request in requests:  # all or none
                self.engine.abort(request.request_id)
            raise
        return requests


def completion(prompt: str, request: Request) -> Completion:
    """What became of a finished request."""
    measured = request_metrics(request)
    return Completion(
        prompt=prompt,
        text=request.text,
        token_ids=request.output_ids,
        finish_reason=request.finish_reason or "abort",
        prompt_tokens=request.num_prompt,
        cached_tokens=request.num_cached,
        preemptions=request.num_preemptions,
        ttft_s=measured.ttft_s,
        tpot_s=measured.tpot_s,
        e2e_s=measured.e2e_s,
        tokens_per_s=1 / measured.tpot_s if measured.tpot_s else None,
        error=request.error,
        matches_grammar=request.matches_grammar,
        grammar_cut=request.grammar_cut,
    )
