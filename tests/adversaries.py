"""Drafters for tests: some know the right tokens, others do all they can to get a wrong one through."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from core_oracle import expected_transform
from hash_heads import HashEagle, HashHeads, HashMedusa, HashMtp, RightEagle, RightMtp

from minillm.backends.hash_model import HashModel, _extend
from minillm.core.backend import Capacity
from minillm.core.sampling import uniform
from minillm.speculate.draft import NO_DRAFT, Ask, Draft, Drafter
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.draft_tree import DraftTree
from minillm.speculate.hidden import MOST_STATES
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.suffix import SuffixDrafter


class Base:
    """Proposes nothing. Seeded, so that a case that fails fails again."""

    cost_ratio = 0.1
    wants_hidden = False
    uses_slots = False

    def start(self, capacity: Capacity) -> None:
        self.vocab_size = capacity.vocab_size
        self.rng = random.Random(1)
        self.forgotten: list[str] = []

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        assert all(ask.max_tokens >= 1 for ask in asks)
        assert all(ask.max_depth >= 1 for ask in asks)
        assert len({ask.request.request_id for ask in asks}) == len(asks)
        assert not {ask.request.request_id for ask in asks} & set(self.forgotten), "asked about what has ended"
        return [self.one(ask) for ask in asks]

    def one(self, ask: Ask) -> Draft:
        return NO_DRAFT

    def forget(self, request_id: str) -> None:
        assert request_id not in self.forgotten, "forgotten twice"
        self.forgotten.append(request_id)

    def length(self, ask: Ask) -> int:
        return self.rng.randint(0, min(ask.max_tokens, ask.max_depth))


class RandomChain(Base):
    def one(self, ask: Ask) -> Draft:
        return Draft([self.rng.randrange(self.vocab_size) for _ in range(self.length(ask))])


class RandomTree(Base):
    def one(self, ask: Ask) -> Draft:
        parents: list[int] = []
        depth: dict[int, int] = {-1: 0}
        for node in range(self.rng.randint(0, ask.max_tokens)):
            parents.append(self.rng.choice([n for n in range(-1, node) if depth[n] < ask.max_depth]))
            depth[node] = depth[parents[-1]] + 1
        return Draft([self.rng.randrange(self.vocab_size) for _ in parents], parents)


class Ends(Base):
    """Proposes the end-of-sequence id, always."""

    def one(self, ask: Ask) -> Draft:
        return Draft([1] * min(ask.max_tokens, ask.max_depth))


class Knowing(Base):
    """Asks the model itself, which the harness puts in."""

    model: HashModel

    def right(self, ask: Ask, drafted: Sequence[int]) -> int:
        """The token that the target draws after the known ones and ``drafted``."""
        request, params = ask.request, ask.request.params
        output = [*request.output_ids, *drafted]
        draw = uniform(request.seed, len(output)) if params.temperature > 0 else 0.0
        transform = expected_transform(params, list(request.prompt_ids), output, set(request.stop_ids), self.vocab_size)
        if len(transform.banned) == self.vocab_size:
            return 0
        return self.model.next_id([*request.prompt_ids, *output], params, draw, transform)

    def rightly(self, ask: Ask, length: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < length:
            tokens.append(self.right(ask, tokens))
        return tokens


class AlwaysRight(Knowing):
    def one(self, ask: Ask) -> Draft:
        return Draft(self.rightly(ask, min(ask.max_tokens, ask.max_depth)))


class AlwaysWrong(Knowing):
    def one(self, ask: Ask) -> Draft:
        tokens: list[int] = []
        for _ in range(self.length(ask)):
            tokens.append((self.right(ask, tokens) + 1) % self.vocab_size)
        return Draft(tokens)


class RightAtFirst(Knowing):
    """Right up to a random place, wrong behind it."""

    def one(self, ask: Ask) -> Draft:
        tokens = self.rightly(ask, self.length(ask))
        cut = self.rng.randint(0, len(tokens))
        return Draft([t if i < cut else (t + 1) % self.vocab_size for i, t in enumerate(tokens)])


class HiddenPath(Knowing):
    """A tree in which the right path is never the first one, where it can be helped."""

    def one(self, ask: Ask) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        node = -1
        while len(tokens) + 2 <= ask.max_tokens and len(path) < ask.max_depth:
            right = self.right(ask, path)
            tokens += [(right + 1) % self.vocab_size, right]
            parents += [node, node]
            path.append(right)
            node = len(tokens) - 1
        return Draft(tokens, parents) if tokens else NO_DRAFT


class ReadsHidden(HiddenPath):
    """Reads hidden states, which the hash model makes of prefixes: each is that of its own token, and none is missing.

    It drafts trees, and chains that are right at first, so that all kinds of paths are accepted.
    """

    wants_hidden = True

    def start(self, capacity: Capacity) -> None:
        super().start(capacity)
        self.ends: dict[str, int] = {}  # by request: the tokens whose states were read
        self.num_asks = self.num_read = 0

    def one(self, ask: Ask) -> Draft:
        request, end = ask.request, ask.request.num_known - 1
        for back, prefix in enumerate(reversed(ask.hidden)):
            assert prefix.length == end - back, "I29: a hidden state of another place"
            assert prefix.digest == prefix_digest(request.token_ids[: end - back]), "I29: of other tokens"
        read = self.ends.get(request.request_id)
        if read is not None:
            assert len(ask.hidden) == min(end - read, MOST_STATES), "hidden states are missing"
        self.ends[request.request_id] = end
        self.num_asks += 1
        self.num_read += bool(ask.hidden)
        return super().one(ask) if self.rng.random() < 0.5 else RightAtFirst.one(self, ask)  # type: ignore[arg-type]


def prefix_digest(token_ids: Sequence[int]) -> int:
    """The hash model's, of a whole prefix."""
    digest = 0
    for token_id in token_ids:
        digest = _extend(digest, token_id)
    return digest


class FromQ(Base):
    """Draws from distributions of its own, with the numbers that it is given for it, and says which they were."""

    def one(self, ask: Ask) -> Draft:
        tokens, rows = [], []
        for i in range(self.length(ask)):
            weights = [self.rng.random() ** 3 for _ in range(self.vocab_size)]
            row = [w / sum(weights) for w in weights]
            number = uniform(ask.draw_seed, ask.request.num_output + i)
            tokens.append(next((t for t in range(self.vocab_size) if number < sum(row[: t + 1])), self.vocab_size - 1))
            rows.append(row)
        return Draft(tokens, None, rows if ask.wants_probabilities else None)


class Near(HashModel):
    """Agrees with the hash model of the same size about most prefixes."""

    def _logits(self, digest: int) -> list[float]:
        logits = super()._logits(digest)
        return logits[1:] + logits[:1] if digest % 5 == 0 else logits


class Audited:
    """I29: whatever was accepted, rejected, preempted or left out: what a draft model takes for cached is so."""

    def start(self, capacity: Capacity) -> None:
        self.backend._vocab_size = capacity.vocab_size  # type: ignore[attr-defined]  # it speaks the target's ids
        super().start(capacity)  # type: ignore[misc]

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        for ask in asks:
            num_cached, model = self.num_cached(ask), self.backend  # type: ignore[attr-defined]
            if num_cached:
                node = 0
                for token_id in ask.request.token_ids[:num_cached]:
                    node = model._ids[node, token_id]
                slot = ask.blocks[(num_cached - 1) // model._block_size] * model._block_size
                assert model._slots[slot + (num_cached - 1) % model._block_size] == node, "I29"
        drafts: list[Draft] = super().propose(asks)  # type: ignore[misc]
        return drafts


class AuditedDraftModel(Audited, DraftModel):
    pass


class AuditedDraftTree(Audited, DraftTree):
    pass


def small(kind: type[HashModel] = HashModel, longest: int = 256) -> HashModel:
    return kind(vocab_size=2, max_model_len=longest)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "silent": Base,
    "random chain": RandomChain,
    "random tree": RandomTree,
    "ends": Ends,
    "always right": AlwaysRight,
    "always wrong": AlwaysWrong,
    "right at first": RightAtFirst,
    "hidden path": HiddenPath,
    "reads hidden": ReadsHidden,
    "from q": FromQ,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "draft model": lambda: AuditedDraftModel(small()),
    "near model": lambda: AuditedDraftModel(small(Near)),
    "short model": lambda: AuditedDraftModel(small(Near, longest=7)),
    "draft tree": lambda: AuditedDraftTree(small(), width=2),
    "near tree": lambda: AuditedDraftTree(small(Near), width=2),
    "medusa": lambda: HashMedusa(HashHeads(is_medusa=True), width=2),
    "eagle": lambda: RightEagle(HashHeads(depth=1)),
    "mtp": lambda: RightMtp(HashHeads()),
    "near eagle": lambda: HashEagle(HashHeads(depth=1, model=small(Near))),
    "near mtp": lambda: HashMtp(HashHeads(model=small(Near))),
}
TREES = ("random tree", "hidden path", "reads hidden", "draft tree", "near tree")
