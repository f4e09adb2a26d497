"""Random callers of the KV manager, between it and the hash model: every read is right, every need exact."""

from core_harness import GREEDY, six_bits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minillm.backends.hash_model import HashModel
from minillm.backends.plans import Chunk, plan_of
from minillm.core.kv_manager import KVManager
from minillm.core.prefix import digest128
from minillm.core.request import Request
from minillm.core.trace import Replay, Trace

LETTERS = st.integers(0, 1)


def make_request(request_id: str, tokens: list[int], salt: str | None = None) -> Request:
    return Request(request_id, tokens, GREEDY, arrival_s=0.0, index=0, seed=0, max_total_tokens=99, salt=salt)


class ManagerMachine(RuleBasedStateMachine):
    """Requests start, advance several a step, fork, look ahead, are given up before their step, and leave."""

    @initialize(
        size=st.integers(1, 3),
        num_blocks=st.integers(4, 12),
        caching=st.booleans(),
        hash_function=st.sampled_from([digest128, six_bits]),
    )
    def setup(self, size: int, num_blocks: int, caching: bool, hash_function) -> None:
        self.size = size
        self.trace = Trace()
        self.kv = KVManager(num_blocks, size, prefix_caching=caching, trace=self.trace, hash_function=hash_function)
        self.model = HashModel(vocab_size=50)
        self.model.load(block_size=size, num_blocks=num_blocks)
        self.requests: dict[str, Request] = {}
        self.count = 0
        self.replay, self.seen = Replay(num_blocks), 0

    def pick(self, data: st.DataObject) -> Request:
        return self.requests[data.draw(st.sampled_from(sorted(self.requests)))]

    def new_id(self) -> str:
        self.count += 1
        return f"q{self.count}"

    @rule(tokens=st.lists(LETTERS, min_size=1, max_size=8), salt=st.sampled_from([None, "a"]))
    def start(self, tokens: list[int], salt: str | None) -> None:
        request = make_request(self.new_id(), tokens, salt)
        hit = self.kv.lookup(request)
        revived = sum(self.kv.pool.ref_counts[b] == 0 for b in hit.blocks)
        fits = -(-len(tokens) // self.size) - len(hit.blocks) <= self.kv.pool.num_free - revived
        assert self.kv.admit(request, hit) == fits
        if fits:
            request.num_computed = hit.num_tokens
            self.requests[request.request_id] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some requests run up to three tokens each; of those that were given blocks, some are given up."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.requests)), min_size=1, unique=True))
        planned: list[tuple[Request, int]] = []
        for request_id in chosen:
            request = self.requests[request_id]
            if request.num_computed == request.num_known:
                request.token_ids.append(data.draw(LETTERS))
            end = request.num_computed + data.draw(st.integers(1, min(3, request.num_known - request.num_computed)))
            if self.reserve(request, end):
                planned.append((request, end))
        for request, _ in data.draw(st.lists(st.sampled_from(planned), unique=True)) if planned else []:
            self.leave(request)
        self.run([(r, end) for r, end in planned if r.request_id in self.requests])

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Checks that the blocks taken are those missing and, where a block is shared, one for its copy."""
        table, pool = list(self.kv.table(request.request_id)), self.kv.pool
        partly = request.num_computed % self.size
        others = [t for r, t in self.kv.tables.items() if r != request.request_id]
        shared = bool(partly) and any(table[request.num_computed // self.size] in t for t in others)
        needed = max(0, -(-num_tokens // self.size) - len(table)) + shared
        free = pool.num_free
        done = self.kv.reserve(request, num_tokens)
        assert done == (needed <= free)
        assert free - pool.num_free == (needed if done else 0)
        after = self.kv.table(request.request_id)
        kept = len(table) - shared if done else len(after)
        assert after[:kept] == table[:kept], "I14: a table changed before the block that is written"
        return done

    def run(self, planned: list[tuple[Request, int]]) -> None:
        copies = self.kv.take_copies()
        assert len({target for _, target in copies}) == len(copies)
        self.model.copy_blocks(copies)
        pool = self.kv.pool
        self.model.poison([0, *(b for b in pool.free_list() if b not in self.kv.index)])
        chunks = []
        for request, end in planned:
            table = self.kv.table(request.request_id)
            for position in range(request.num_computed, end):
                assert pool.ref_counts[table[position // self.size]] == 1, "I16: a shared block is written"
                assert table[position // self.size] not in self.kv.index, "I16: an indexed block is written"
            chunks.append(Chunk(request.token_ids, table, request.num_computed, end))
        result = self.model.run(plan_of(chunks, self.size))
        for (request, end), token_id in zip(planned, result.token_ids, strict=True):
            assert token_id == self.model.next_id(request.token_ids[:end], GREEDY, 0.0), "a wrong prefix was read"
            request.num_computed = end
            self.kv.commit(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.fork_of(self.pick(data), data)

    def fork_of(self, parent: Request, data: st.DataObject) -> None:
        if not parent.num_computed:
            return
        tokens = parent.token_ids[: parent.num_computed] + data.draw(st.lists(LETTERS, min_size=1, max_size=2))
        child = make_request(self.new_id(), tokens, parent.salt)
        child.num_computed = parent.num_computed
        free = self.kv.pool.num_free
        self.kv.fork(parent, child)
        assert self.kv.pool.num_free == free, "a fork takes no block"
        shared = self.kv.table(child.request_id)
        assert shared == self.kv.table(parent.request_id)[: len(shared)]
        assert len(shared) == -(-child.num_computed // self.size), "I13: the length of a table"
        self.requests[child.request_id] = child

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), ahead=st.integers(1, 7), forks=st.booleans())
    def look_ahead(self, data: st.DataObject, ahead: int, forks: bool) -> None:
        """Room for drafts, all of which are rejected; a fork meanwhile has none of it."""
        request = self.pick(data)
        if self.reserve(request, request.num_computed + ahead):
            if forks:
                self.fork_of(request, data)
            self.kv.rewind(request, request.num_computed)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.leave(self.pick(data))

    def leave(self, request: Request) -> None:
        self.kv.release(self.requests.pop(request.request_id))
        assert request.request_id not in self.kv.tables

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check()
        tables = self.kv.tables
        assert tables.keys() == self.requests.keys()
        assert self.kv.pool.num_used == len({b for table in tables.values() for b in table})
        self.replay.apply(self.trace.events[self.seen :])
        self.seen = len(self.trace.events)
        assert {r: t for r, t in self.replay.tables.items() if t} == {r: t for r, t in tables.items() if t}
        assert [len(h) for h in self.replay.holders] == self.kv.pool.ref_counts
        assert {b for b, cached in enumerate(self.replay.cached) if cached} == set(self.kv.index.blocks())
