"""Random callers of the KV manager, between it and the hash model: every read is right, every need exact.

``Callers`` does one thing after the other to a manager and checks what it did against tables, counts and
prefixes that the test keeps itself. What it does is drawn from a ``Draw``: hypothesis's, which shrinks, or
a seeded one, which is fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_harness import GREEDY, six_bits
from random_choices import Draw, SeededDraw

from minillm.backends.hash_model import HashModel
from minillm.backends.plans import Chunk, plan_of
from minillm.core.kv.block_keys import ExtraKey, digest128
from minillm.core.kv.events import BlockEvent, PrefixReplica, block_events
from minillm.core.kv_manager import KVManager
from minillm.core.observe.integrity import check_kv
from minillm.core.observe.replay import Replay
from minillm.core.observe.trace import EventLog
from minillm.core.request import Request

Content = tuple[tuple[int, ...], frozenset[tuple[str, str, int]]]  # a prefix's tokens and extra keys


def make_request(request_id: str, tokens: list[int], extra_keys: tuple[ExtraKey, ...] = ()) -> Request:
    request = Request(request_id, tokens, GREEDY, arrival_s=0.0, index=0, seed=0, max_total_tokens=99)
    request.extra_keys = extra_keys
    return request


class Callers:
    """Requests start, advance several a step, fork, look ahead, are swapped, are given up before a step, and leave."""

    def __init__(self, draw: Draw, windows: Sequence[int | None] = (None,)) -> None:
        self.window = draw.choice(windows) if len(windows) > 1 else windows[0]
        self.size = draw.integer(1, 3)
        self.num_blocks, num_host_blocks = draw.integer(4, 12), draw.integer(0, 8)
        self.trace = EventLog()
        self.hash_function = hash_function = draw.choice([digest128, six_bits])
        self.kv = KVManager(
            self.num_blocks,
            self.size,
            num_host_blocks=num_host_blocks,
            prefix_caching=draw.choice([True, True, False]),
            prefix_index=draw.choice(["hash", "radix"]),
            eviction=draw.choice(["lru", "lfu", "cost"]),
            crossover_tokens=4.0,
            window=self.window,
            trace=self.trace,
            hash_function=hash_function,
        )
        self.events: list[BlockEvent] = []
        block_events(self.kv).subscribe(self.events.append)
        self.replica = PrefixReplica(self.size, hash_function)
        self.model = HashModel(vocab_size=50, window=self.window)
        self.model.load(block_size=self.size, num_blocks=self.num_blocks, num_host_blocks=num_host_blocks)
        self.running: dict[str, Request] = {}
        self.swapped: dict[str, Request] = {}
        self.twins: dict[int, tuple[int, int]] = {}  # full host blocks: device block and epoch last known to be equal
        self.computed: dict[tuple[int, int], Content] = {}  # what each full block was computed from, by block and epoch
        self.count = 0
        self.replay, self.seen = Replay(self.num_blocks), 0

    def act(self, draw: Draw) -> None:
        """One thing that is possible now, and the audit after it."""
        acts = [self.start]
        if self.running:
            acts += [self.step, self.step, self.step, self.fork, self.look_ahead, self.swap_out]
        if self.swapped:
            acts += [self.swap_in, self.swap_in]
        if self.running or self.swapped:
            acts.append(self.release)
        draw.choice(acts)(draw)
        self.audit()

    def start(self, draw: Draw) -> None:
        same = draw.choice([True, False])  # long common prefixes
        tokens = [0 if same else draw.integer(0, 1) for _ in range(draw.integer(1, 8))]
        image = ExtraKey("image", "a", draw.integer(0, min(3, len(tokens)) - 1))
        extra_keys = draw.some([ExtraKey("salt", "a"), ExtraKey("adapter", "a"), image], 0)
        request = make_request(self.new_id(), tokens, tuple(extra_keys) if draw.choice([True, False]) else ())
        found = self.kv.lookup(request)
        [hit] = found.groups
        if self.hash_function is digest128:  # a router may err where digests collide
            cached = self.replica.cached_tokens(tokens, request.extra_keys)
            most = min(cached, (len(tokens) - 1) // self.size * self.size)
            # With a window a hit needs its last blocks alone, so it may be longer than what is cached in one piece.
            assert most == found.num_tokens or (self.window is not None and most < found.num_tokens)
        assert hit.num_skipped == hit.blocks.count(0)
        for i, block in enumerate(hit.blocks):
            if block == 0:
                assert self.window is not None
                assert (i + 1) * self.size <= found.num_tokens - self.window + 1, "a block is not hit that will be read"
                continue
            content = self.computed[block, self.kv.pool.epochs[block]]
            assert content == self.content(request, i), "I8, I11: a block of another prefix, salt, adapter or image"
        revived = sum(self.kv.pool.ref_counts[b] == 0 for b in hit.blocks if b)
        fits = -(-len(tokens) // self.size) - len(hit.blocks) <= self.kv.pool.num_free - revived
        assert self.kv.admit(request, found) == fits
        if fits:
            request.num_computed_tokens = found.num_tokens
            self.running[request.request_id] = request

    def step(self, draw: Draw) -> None:
        """Some requests run up to three tokens each; of those that were given blocks, some are given up."""
        planned: list[tuple[Request, int]] = []
        for request in draw.some(sorted(self.running.values(), key=lambda r: r.request_id), 1):
            if request.num_computed_tokens == request.num_known:
                request.token_ids.append(draw.integer(0, 1))
            end = request.num_computed_tokens + draw.integer(1, min(3, request.num_known - request.num_computed_tokens))
            if self.reserve(request, end):
                planned.append((request, end))
        if planned and draw.integer(0, 3) == 0:
            for request, _ in draw.some(planned, 0):
                if draw.choice([True, False]):
                    self.swap_out_of(request)
                else:
                    self.leave(request)
        self.run([(r, end) for r, end in planned if r.request_id in self.running])

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Checks that the blocks taken are those missing and, where a block is shared, one for its copy."""
        table, pool = list(self.kv.table(request.request_id)), self.kv.pool
        partly = request.num_computed_tokens % self.size
        others = [t for r, t in self.tables().items() if r != request.request_id]
        shared = bool(partly) and any(table[request.num_computed_tokens // self.size] in t for t in others)
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
        copies = self.kv.copies.take()
        assert len({target for _, target in copies}) == len(copies)
        self.model.copy_blocks(copies)
        self.poison_what_nobody_may_read()
        pool, chunks = self.kv.pool, []
        for request, end in planned:
            table = self.kv.table(request.request_id)
            for position in range(request.num_computed_tokens, end):
                assert pool.ref_counts[table[position // self.size]] == 1, "I16: a shared block is written"
                assert table[position // self.size] not in self.kv.groups[0].index, "I16: an indexed block is written"
            chunks.append(Chunk(request.token_ids, table, request.num_computed_tokens, end))
        result = self.model.run(plan_of(chunks, self.size))
        for (request, end), token_id in zip(planned, result.token_ids, strict=True):
            assert token_id == self.model.next_id(request.token_ids[:end], GREEDY, 0.0), "a wrong prefix was read"
            first, request.num_computed_tokens = request.num_computed_tokens // self.size, end
            table = self.kv.table(request.request_id)
            for i in range(first, end // self.size):
                self.computed[table[i], pool.epochs[table[i]]] = self.content(request, i)
            self.kv.commit(request)

    def content(self, request: Request, i: int) -> Content:
        """What the K/V of block ``i`` depends on."""
        end = (i + 1) * self.size
        extras = frozenset((e.kind, e.value, e.start) for e in request.extra_keys if e.start < end)
        return tuple(request.token_ids[:end]), extras

    def poison_what_nobody_may_read(self) -> None:
        self.model.poison([0, *(b for b in self.kv.pool.free_list() if b not in self.kv.groups[0].index)])
        held = {host for hosts in self.host_tables().values() for host in hosts}
        all_hosts = range(self.num_blocks, self.num_blocks + self.kv.host.num_blocks)
        self.model.poison([host for host in all_hosts if host not in held])

    def fork(self, draw: Draw) -> None:
        self.fork_of(self.pick(draw), draw)

    def fork_of(self, parent: Request, draw: Draw) -> None:
        if not parent.num_computed_tokens:
            return
        tokens = [draw.integer(0, 1) for _ in range(draw.integer(1, 2))]
        child = make_request(self.new_id(), parent.token_ids[: parent.num_computed_tokens] + tokens, parent.extra_keys)
        child.num_computed_tokens = parent.num_computed_tokens
        free = self.kv.pool.num_free
        self.kv.fork(parent, child)
        assert self.kv.pool.num_free == free, "a fork takes no block"
        shared = self.kv.table(child.request_id)
        assert shared == self.kv.table(parent.request_id)[: len(shared)]
        assert len(shared) == -(-child.num_computed_tokens // self.size), "I13: the length of a table"
        self.running[child.request_id] = child

    def look_ahead(self, draw: Draw) -> None:
        """Room for drafts, all of which are rejected; a fork meanwhile has none of it."""
        request = self.pick(draw)
        if self.reserve(request, request.num_computed_tokens + draw.integer(1, 7)):
            if draw.choice([True, False]):
                self.fork_of(request, draw)
            self.kv.rewind(request, request.num_computed_tokens)

    def swap_out(self, draw: Draw) -> None:
        self.swap_out_of(self.pick(draw))

    def swap_out_of(self, request: Request) -> None:
        """Checks that what is full and on the host already is not stored again."""
        kv, table, free = self.kv, list(self.kv.table(request.request_id)), self.kv.host.num_free
        covering = table[: -(-request.num_computed_tokens // self.size)]
        num_full = request.num_computed_tokens // self.size - covering.count(0)
        contents = [(block, kv.pool.epochs[block]) for block in covering if block]
        held = {host for hosts in self.host_tables().values() for host in hosts}
        there = {content for host, content in self.twins.items() if host in held}
        needed = len(contents) - len(there.intersection(contents[:num_full]))
        done = kv.swap.swap_out(request)
        assert done == (request.request_id in kv.swap.tables) == (needed <= free)
        assert free - kv.host.num_free == (needed if done else 0)
        if done:
            hosts = self.host_tables()[request.request_id]
            self.twins.update(zip(hosts, contents[:num_full], strict=False))
            for host in hosts[num_full:]:  # a block that still fills up, where a full one may have been before
                self.twins.pop(host, None)
            self.swapped[request.request_id] = self.running.pop(request.request_id)
        else:
            assert kv.table(request.request_id) == table

    def swap_in(self, draw: Draw) -> None:
        """Checks that what is full and on the device still joins the table, and nothing else does."""
        request = self.swapped[draw.choice(sorted(self.swapped))]
        kv, pool, free = self.kv, self.kv.pool, self.kv.pool.num_free
        hosts = self.host_tables()[request.request_id]
        gone = -(-request.num_computed_tokens // self.size) - len(hosts)
        num_full = request.num_computed_tokens // self.size - gone
        stay = [
            block
            for block, epoch in (self.twins[host] for host in hosts[:num_full])
            if pool.epochs[block] == epoch and (pool.ref_counts[block] or block in kv.groups[0].index)
        ]
        needed = -(-request.num_known // self.size) - gone - sum(pool.ref_counts[block] > 0 for block in stay)
        done = kv.swap.swap_in(request)
        assert done == (request.request_id not in kv.swap.tables) == (needed <= free)
        if not done:
            assert free == pool.num_free
            return
        table = kv.table(request.request_id)
        assert len(table) == -(-request.num_computed_tokens // self.size), "I13: the length of a table"
        assert [block for block in table if block in stay] == stay
        assert not any(table[:gone])
        for i, (host, block) in enumerate(zip(hosts[:num_full], table[gone:], strict=False), start=gone):
            self.twins[host] = block, pool.epochs[block]
            self.computed[self.twins[host]] = self.content(request, i)
        self.running[request.request_id] = self.swapped.pop(request.request_id)

    def release(self, draw: Draw) -> None:
        requests = self.running | self.swapped
        self.leave(requests[draw.choice(sorted(requests))])

    def leave(self, request: Request) -> None:
        self.kv.release(request)
        self.running.pop(request.request_id, None)
        self.swapped.pop(request.request_id, None)
        assert request.request_id not in self.kv.block_tables
        assert request.request_id not in self.kv.swap.tables

    def tables(self) -> dict[str, list[int]]:
        return {request_id: table.blocks for request_id, table in self.kv.block_tables.items()}

    def pick(self, draw: Draw) -> Request:
        return self.running[draw.choice(sorted(self.running))]

    def new_id(self) -> str:
        self.count += 1
        return f"q{self.count}"

    def host_tables(self) -> dict[str, list[int]]:
        self.catch_up()
        return self.replay.host_tables

    def catch_up(self) -> None:
        self.replay.apply(self.trace.events[self.seen :])
        self.seen = len(self.trace.events)

    def audit(self) -> None:
        check_kv(self.kv)
        self.catch_up()
        assert all(self.replica.apply(event) for event in self.events)
        self.events.clear()
        if self.hash_function is digest128:
            assert len(self.replica) == len(self.kv.groups[0].index)
        tables = self.tables()
        assert tables.keys() == self.running.keys()
        assert self.kv.pool.num_used == len({b for table in tables.values() for b in table if b})
        assert {r: t for r, t in self.replay.tables.items() if t} == {r: t for r, t in tables.items() if t}
        assert [len(h) for h in self.replay.holders] == self.kv.pool.ref_counts
        assert self.replay.host_tables.keys() == self.swapped.keys()
        held = {host for hosts in self.replay.host_tables.values() for host in hosts}
        assert self.kv.host.num_blocks - self.kv.host.num_free == len(held)
        assert {b for b, cached in enumerate(self.replay.cached) if cached} == set(self.kv.groups[0].index.blocks())


def random_calls(seeds: range, acts: int = 60, windows: Sequence[int | None] = (None,)) -> None:
    """The manager under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = Callers(draw, windows)
        for _ in range(acts):
            callers.act(draw)
