"""Draft heads on the hash model, for tests: they are always right, and every wrong read of their K/V shows.

A hidden state is the hash of a prefix. A module that joins it with the token after it has the hash of the prefix
that is one longer, from which the very next token follows; so what an EAGLE or MTP drafter proposes is what the
target draws, as long as each module gets the states and tokens of the right places. Each slot remembers what it
was computed from, and a run finds in its context an unbroken row of places that leads to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minillm.backends.hash_model import HashModel, _extend
from minillm.core.backend import Capacity
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import distribution, sample
from minillm.core.sampling.logprobs import token_logprobs
from minillm.speculate.draft import Ask, Draft
from minillm.speculate.eagle import EagleDrafter
from minillm.speculate.heads import ChainHeads
from minillm.speculate.medusa import MedusaDrafter
from minillm.speculate.mtp import MtpDrafter


class Entry(NamedTuple):
    """What a slot holds: the place, the state that was read there, and the state that came out."""

    position: int
    read: int
    made: int


class HashHeads:
    """Fulfils `minillm.speculate.heads.HeadModel`; ``is_medusa``: draws head by head."""

    cost_ratio = 0.1

    def __init__(self, depth: int = 3, *, model: HashModel | None = None, is_medusa: bool = False) -> None:
        """``model`` says what is drawn; by one that is not the target's, heads are wrong now and then."""
        self.depth = depth
        self.model = HashModel(vocab_size=2) if model is None else model
        self._is_medusa = is_medusa
        self._slots: list[list[Entry | None]] = [[] for _ in range(depth)]  # by module
        self._block_size = 0

    def load(self, *, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        for slots in self._slots:
            slots.extend([None] * (num_blocks * block_size - len(slots)))

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        for slots in self._slots:
            read = [slots[source] for source, _ in pairs]
            for (_, target), content in zip(pairs, read, strict=True):
                slots[target] = content

    def run(self, plan: StepPlan, hidden: Sequence[Any], module: int) -> tuple[StepResult, Sequence[Any]]:
        states = [getattr(state, "digest", state) for state in hidden]
        result = StepResult([], 0.0)
        if self._is_medusa:
            for state in states:
                for _ in range(self.depth):
                    state = _extend(state, self._draw(plan, len(result.token_ids), state, result))
            return result, ()
        made = [_extend(state, token) for state, token in zip(states, plan.token_ids, strict=True)]
        slots = self._slots[module]
        for i, slot in enumerate(plan.slot_mapping):
            slots[slot] = Entry(plan.positions[i], states[i], made[i])
        for row, draw_token in enumerate(plan.logits_indices):
            self._read_back(plan, row, slots)
            self._draw(plan, row, made[draw_token], result)
        return result, made

    def _read_back(self, plan: StepPlan, row: int, slots: Sequence[Entry | None]) -> None:
        (block,) = plan.block_tables[row]
        length = plan.seq_lens[row]
        assert 0 < length <= self._block_size, f"{length} tokens in a room of {self._block_size}"
        first = block * self._block_size
        end = plan.query_start_loc[row + 1]
        assert plan.slot_mapping[end - 1] == first + length - 1, "the newest token is not the last of its context"
        before: Entry | None = None
        for entry in slots[first : first + length]:
            assert entry is not None, "a slot is read that was never written"
            if before is not None:
                assert entry.position == before.position + 1, "a place is missing in the context"
                assert entry.read == before.made, "a slot holds what a rejected draft left"
            before = entry

    def _draw(self, plan: StepPlan, draw: int, state: int, result: StepResult) -> int:
        """The draw from a state; in Medusa's plans the draws after the first are not shaped."""
        logits = self.model._logits(state)
        params, transform = plan.sampling[draw], plan.transforms.get(draw)
        result.token_ids.append(sample(logits, params, plan.uniforms[draw], transform))
        if draw in plan.logprobs:
            result.logprobs[draw] = token_logprobs(logits, result.token_ids[draw], plan.logprobs[draw])
        if draw in plan.distributions:
            chances = dict(distribution(logits, params, transform))
            result.distributions[draw] = [chances.get(i, 0.0) for i in range(self.model._vocab_size)]
        return result.token_ids[draw]


class Hashed:
    """Mixed into a drafter: it speaks the target's ids."""

    def start(self, capacity: Capacity) -> None:
        self.model.model._vocab_size = capacity.vocab_size  # type: ignore[attr-defined]
        super().start(capacity)  # type: ignore[misc]


class AlwaysAccepted(Hashed):
    """Mixed into a chain drafter: whatever it proposed was accepted whole, unless the request was preempted."""

    def start(self, capacity: Capacity) -> None:
        self.proposed: dict[str, tuple[int, int, int]] = {}  # by request: its epoch and tokens then, and the drafted
        super().start(capacity)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        for ask in asks:
            epoch, known, drafted = self.proposed.get(ask.request.request_id, (-1, 0, 0))
            grown = ask.request.num_known - known
            assert epoch != ask.request.epoch or grown > drafted, f"{grown - 1} of {drafted} tokens were accepted"
        drafts: list[Draft] = super().propose(asks)  # type: ignore[misc]
        for ask, draft in zip(asks, drafts, strict=True):
            request = ask.request
            self.proposed[request.request_id] = (request.epoch, request.num_known, len(draft.token_ids))
        return drafts


class RightEagle(AlwaysAccepted, EagleDrafter):
    pass


class RightMtp(AlwaysAccepted, MtpDrafter):
    pass


class HashEagle(Hashed, EagleDrafter):
    pass


class HashMtp(Hashed, MtpDrafter):
    pass


class HashMedusa(Hashed, MedusaDrafter):
    pass


def contexts_are_free(drafter: ChainHeads) -> bool:
    """Whether every block but the null block is given back, once all requests have ended."""
    contexts = drafter.contexts
    return sorted(contexts._free) == list(range(1, contexts._num_blocks))
