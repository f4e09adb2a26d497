"""Requests that wait for what others have cached of their prompts, before they go to the engine.

A source after the other is asked until one has something; what did not come, or not in time, the engine computes. So
a request hands itself over from a prefill engine, or comes back from a tier, by the same way, and nothing that
can go wrong on it costs more than time. What came is held until the request was admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minillm.core.engine import Engine
from minillm.core.kv.block_keys import ExtraKey
from minillm.core.policies.admission import check_extra_keys, check_prompt
from minillm.core.request import Request, RequestError, Status
from minillm.core.sampling import SamplingParams
from minillm.transfer.importer import Importer
from minillm.transfer.protocol import BlockStore, Message, Prefix, Send


@dataclass(slots=True)
class _Waiting:
    prompt_ids: Sequence[int]
    params: SamplingParams
    options: dict[str, Any]  # of ``add_request``
    prefix: Prefix
    sources: list[str]  # still to be asked
    transfer: str = ""  # the one under way


class Intake:
    """One for an engine. ``name`` is its address, and ``boot`` tells a restarted one from the one before."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        store: BlockStore,
        send: Send,
        *,
        retry_s: float,
        timeout_s: float,
        hold_s: float,
        boot: int = 0,
    ) -> None:
        self._engine = engine
        self._boot = boot
        self._waiting: dict[str, _Waiting] = {}
        self._entered: dict[str, tuple[Request, str]] = {}  # at the engine, not admitted when last looked at
        self.refused: dict[str, str] = {}  # requests that the engine would not take, and why
        self.importer = Importer(
            name, store, send, retry_s=retry_s, timeout_s=timeout_s, hold_s=hold_s, on_end=self._on_end
        )

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        sources: Sequence[str],
        now_s: float,
        **options: Any,
    ) -> None:
        """Ask ``sources`` in this order for what they have of the prompt, then add the request to the engine.

        ``options`` are those of ``Engine.add_request``. What it refuses is told by ``refused``.
        """
        if request_id in self._waiting:
            raise RequestError(f"request id {request_id!r} waits already: choose another")
        if request_id in self._engine.requests:
            raise RequestError(f"request id {request_id!r} is taken: choose another")
        salt, keys = options.get("salt"), options.get("extra_keys", ())
        try:
            prompt = check_prompt(prompt_ids, self._engine.capacity.vocab_size, self._engine.max_model_len)
            check_extra_keys(keys, salt, len(prompt))
        except RequestError as error:
            self.refused[request_id] = str(error)
            return
        salts = () if salt is None else (ExtraKey("salt", salt),)
        prefix = Prefix(tuple(prompt), (*salts, *keys))
        waiting = self._waiting[request_id] = _Waiting(prompt_ids, params, options, prefix, list(sources))
        self._next(request_id, waiting, now_s)

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request, wherever it is; its terminal event comes from the engine. False if it is unknown or over."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting.sources.clear()
            self.importer.abort(waiting.transfer, now_s)  # which sends it to the engine
        return self._engine.abort(request_id)

    def on_message(self, message: Message, now_s: float) -> None:
        self.importer.on_message(message, now_s)

    def tick(self, now_s: float) -> None:
        """Go on with what waits, and let go of what requests have taken over by now."""
        self.importer.tick(now_s)
        for request_id, (request, transfer) in list(self._entered.items()):
            if request.status not in (Status.PENDING, Status.WAITING):
                self.importer.release(transfer)
                del self._entered[request_id]

    def _next(self, request_id: str, waiting: _Waiting, now_s: float) -> None:
        if waiting.sources:
            source = waiting.sources.pop(0)
            waiting.transfer = f"{request_id} from {source}, boot {self._boot}"
            self.importer.pull(waiting.transfer, source, waiting.prefix, now_s)
        else:
            self._enter(request_id, waiting)

    def _on_end(self, transfer: str, count: int | None, now_s: float) -> None:
        request_id, waiting = next((r, w) for r, w in self._waiting.items() if w.transfer == transfer)
        if count is None:
            self._next(request_id, waiting, now_s)
        else:
            self._enter(request_id, waiting)

    def _enter(self, request_id: str, waiting: _Waiting) -> None:
        del self._waiting[request_id]
        try:
            request = self._engine.add_request(
                waiting.prompt_ids, waiting.params, request_id=request_id, **waiting.options
            )
        except RequestError as error:
            self.refused[request_id] = str(error)
            self.importer.release(waiting.transfer)
        else:
            self._entered[request_id] = request, waiting.transfer
