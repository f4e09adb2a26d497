"""``LLM(model).generate(prompts)``: a model by name, its tokenizer and an engine behind one small object."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from minillm import hub
from minillm.backends import create_backend
from minillm.completion import Completion, completion
from minillm.config import Locations
from minillm.core.config import EngineConfig
from minillm.core.detokenizer import known_ids
from minillm.core.engine import Engine, Event, Request, RequestError
from minillm.core.outputs.group import outputs
from minillm.core.policies.admission import check_prompt
from minillm.core.sampling import SamplingParams
from minillm.download import Progress
from minillm.grammar import Grammar, Vocabulary
from minillm.models.load import load_model
from minillm.speculation import Method, Speculate, speculation_for
from minillm.structured import GrammarEngine, Kind, compile_grammar, vocabulary_of


class LLM:
    """A loaded model and its engine. Not to be shared between threads.

    ``model`` is a name that ``minillm models`` lists, ``ORG/NAME`` fetched before, or a path. With
    ``backend="auto"`` the bundled models run on NumPy, others on torch where it is installed. ``speculate``
    is a method of `minillm.speculation`, by its name or with options; it changes how fast an output comes, not
    the output. ``say`` and ``progress`` hear of a download.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        backend: str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        config: EngineConfig | None = None,
        speculate: Method | Speculate | None = None,
        where: Locations | None = None,
        say: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(config, EngineConfig | None):
            raise ValueError(f"config is {config!r}: give EngineConfig(...)")
        self.model = model
        resolve = partial(hub.resolve, where=where or Locations(), say=say, progress=progress)
        self._path_of: Callable[[str], Path] = resolve
        self.loaded = load_model(resolve(model))
        if backend == "auto":
            backend = "torch" if not self.loaded.bundled and find_spec("torch") else "numpy"
        self.tokenizer = self.loaded.tokenizer()
        self.backend_name = backend
        longest = None if config is None else config.max_model_len
        self._new_backend = partial(create_backend, backend=backend, dtype=dtype, device=device)
        self.backend = self._new_backend(self.loaded, max_model_len=longest)
        self._config = config
        self._vocabulary: Vocabulary | None = None  # for grammars
        self.restart(speculate)

    def restart(self, speculate: Method | Speculate | None = None) -> None:
        """A new engine on the same weights: it speculates as said here, and knows nothing of earlier requests."""
        self.speculate = Speculate(speculate) if isinstance(speculate, str) else speculate
        if not isinstance(self.speculate, Speculate | None):
            raise ValueError(f"speculate is {speculate!r}: give the name of a method, a Speculate, or None")
        speculation = None
        if self.speculate is not None:
            speculation = speculation_for(self.speculate, self.loaded, self.backend, self._path_of, self._new_backend)
        self._inboxes: dict[str, deque[Event]] = {}  # of the engine's streams, by request id
        self.engine = Engine(
            self.backend,
            self._config,
            eos_ids=self.tokenizer.eos_ids,
            tokenizer=self.tokenizer,
            speculation=speculation,
        )

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | None = None,
        *,
        json_schema: dict[str, Any] | bool | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> list[Completion]:
        """Complete the prompts, text or token ids, together in one batch; the answers come in their order.

        Those of one prompt come together: its ``n`` samples in order, or the best first where they are ranked.
        Words of ``bad_words`` that are text are banned as the tokens that spell them at the beginning and in the
        middle of a sentence; other tokens may still spell them. At most one of ``json_schema`` (parsed, or its
        text), ``regex`` and ``grammar`` (text in GBNF) says what each output has to match.

        Raises:
            RequestError: a prompt is empty or longer than the model takes; then none of them runs.
            GrammarError: the grammar is damaged or says what is not supported.
        """
        if not isinstance(prompts, Iterable):
            raise RequestError(f"prompts are {prompts!r}: give a text, or a list of texts")
        given_prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = _checked(params)
        given = {"json_schema": json_schema, "regex": regex, "gbnf": grammar}
        sources = [(kind, source) for kind, source in given.items() if source is not None]
        if len(sources) + (params.grammar is not None) > 1:
            raise ValueError(f"{len(sources)} grammars beside params.grammar {params.grammar}: an output matches one")
        for kind, source in sources:
            params = replace(params, grammar=self.compile_grammar(cast(Kind, kind), source))
        limits = self.engine.capacity.vocab_size, self.engine.max_model_len
        all_ids = [check_prompt(self._ids(prompt), *limits) for prompt in given_prompts]
        texts = [
            prompt if isinstance(prompt, str) else self.tokenizer.decode(known_ids(self.tokenizer, ids))
            for prompt, ids in zip(given_prompts, all_ids, strict=True)
        ]
        requests = self._submit(all_ids, params)
        try:
            for _ in self._steps():
                pass
        except BaseException:  # interrupted, for one: nobody will ask for them any more
            for request in requests:
                self.engine.abort(request.request_id)
            raise
        return [
            completion(text, one, self.tokenizer, index)
            for text, request in zip(texts, requests, strict=True)
            for index, one in enumerate(outputs(request))
        ]

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Generator[Event, None, Request]:
        """Events of one request as they come; it returns the request. Closing the iterator early aborts the request.

        Several streams may be read by turns, and ``generate`` be called between: each event comes to its own.

        Raises:
            RequestError: the parameters ask for several outputs, or the prompt cannot be served.
        """
        params = _checked(params)
        if params.num_sequences > 1 or params.beam_width:
            raise RequestError("a stream shows one output as it comes: use generate for n, best_of and beam_width")
        engine, inboxes, steps = self.engine, self._inboxes, self._steps()
        (request,) = self._submit([self._ids(prompt)], params)
        name = request.request_id
        inbox = inboxes[name] = deque()
        try:
            while bool(inbox) or next(steps, False):
                while inbox:
                    yield inbox.popleft()
                if request.is_finished:
                    break
            return request
        finally:
            del inboxes[name]
            if engine.abort(name):
                _deliver(engine.step(), inboxes)

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

    def _steps(self) -> Iterator[bool]:
        """Run all that is there, a step at a time, and put the events of streams into their inboxes."""
        inboxes = self._inboxes
        engine = self.engine
        for events in engine.run_steps():
            _deliver(events, inboxes)
            yield True
            if (wait_s := engine.wait_s()) > 0:
                time.sleep(wait_s)

    def _ids(self, prompt: object) -> list[int]:
        """Of a prompt that is text or, as it stands, token ids."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            raise RequestError(f"a prompt is text or a sequence of token ids, not {prompt!r}: put it in a list")
        return [*prompt]

    def last_request(self) -> Request:
        """The request that was submitted last."""
        return next(reversed(self.engine.requests.values()))

    def close(self) -> None:
        self.backend.close()

    def _submit(self, prompts: list[list[int]], params: SamplingParams) -> list[Request]:
        params = replace(params, bad_words=tuple(self._banned(params.bad_words)))
        requests: list[Request] = []
        try:
            for ids in prompts:
                requests.append(self.engine.add_request(ids, params))
        except BaseException:
            for request in requests:  # all or none
                self.engine.abort(request.request_id)
            raise
        return requests

    def _banned(self, words: Sequence[str | tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """Each word as token ids: text as it stands and, as vLLM does, after a space, which tokenizers join to it."""
        for word in words:
            spellings = dict.fromkeys((word, " " + word.lstrip())) if isinstance(word, str) else (word,)
            for spelling in spellings:
                yield tuple(self.tokenizer.encode(spelling)) if isinstance(spelling, str) else spelling


def _checked(params: SamplingParams | None) -> SamplingParams:
    if not isinstance(params, SamplingParams | None):
        raise ValueError(f"params is {params!r}: give SamplingParams(...)")
    return params or SamplingParams()


def _deliver(events: Iterable[Event], inboxes: dict[str, deque[Event]]) -> None:
    for event in events:
        if event.request_id in inboxes:
            inboxes[event.request_id].append(event)
