"""Prefill and decode engines, host and disk tiers, and a bad network between them: outputs are always right.

``TransferCallers`` sends requests through a prefill engine to a decode engine, or to the decode engine alone,
which asks the tiers. It aborts at any phase and restarts engines, while messages are lost, doubled, delayed and
reordered. After every tick all structures are checked; in the end everything has been let go and every output is
that of the oracle, which knows no blocks and no network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from core_harness import AuditedModel, make_engine, six_bits
from core_oracle import oracle
from lossy_network import LossyNetwork
from random_choices import Draw, SeededDraw

from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.kv.block_keys import ExtraKey, digest128
from minillm.core.observe.replay import Replay
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.transfer import Ask, DeviceStore, Done, Fetch, Importer, Intake, Prefix, Source
from minillm.transfer.tiers import DiskMedium, HostMedium, SlotStore

RETRY_S, TIMEOUT_S, HOLD_S = 3.0, 12.0, 10.0
LONGEST = 10


@dataclass
class Job:
    """One request, wherever it is. ``where``: "prefill", "decode", then "over"."""

    prompt: list[int]
    params: SamplingParams
    salt: str | None
    where: str = "prefill"
    attempt: int = 0
    aborted: bool = False
    output: list[int] | None = None


@dataclass
class Node:
    """An engine with its two ends of the network."""

    name: str
    engine: Engine
    model: AuditedModel
    source: Source
    intake: Intake
    replay: Replay
    boot: int
    jobs: dict[str, str] = field(default_factory=dict)  # request id at the engine -> job


class TransferCallers:
    """A prefill engine "p", a decode engine "d", tiers "host" and "disk"."""

    def __init__(self, draw: Draw, folder: Path | None = None) -> None:
        self.now_s = 0.0
        self.network = LossyNetwork(
            draw.integer(0, 10**6),
            loss=draw.choice([0.0, 0.1, 0.4]),
            doubling=draw.choice([0.0, 0.3]),
            max_delay_s=draw.choice([0.0, 2.0, 9.0]),
        )
        self.size = draw.integer(1, 3)
        self.lease_s = draw.choice([4.0, 15.0])
        self.is_async = draw.choice([True, False])
        self.hash_function = draw.choice([digest128, digest128, six_bits])
        self.share = draw.choice([0.5, 1.0])
        self.is_crowded = draw.integer(0, 3) == 0  # swapping all the time
        self.configs = {name: self.config(draw) for name in "pd"}
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.came = self.failed = 0
        for name in "pd":
            self.start(name)
        layout = DeviceStore(self.nodes["d"].engine, "hash").layout
        self.tiers = {
            "host": SlotStore(HostMedium(), draw.integer(1, 6), self.size, layout),
            "disk": SlotStore(DiskMedium(folder) if folder else HostMedium(), draw.integer(2, 12), self.size, layout),
        }
        self.sources = {name: Source(name, tier, self.network.send, lease_s=6.0) for name, tier in self.tiers.items()}
        self.importers = {
            name: Importer(
                f"{name}/in", tier, self.network.send, retry_s=RETRY_S, timeout_s=TIMEOUT_S, hold_s=0.0,
                on_end=self.pass_on if name == "host" else self.ended,
            )
            for name, tier in self.tiers.items()
        }  # fmt: skip
        for name in self.tiers:
            self.network.nodes[name] = self.sources[name].on_message
            self.network.nodes[f"{name}/in"] = self.importers[name].on_message
        self.kept: dict[str, Prefix] = {}
        self.count = 0

    def config(self, draw: Draw) -> EngineConfig:
        num_host_blocks = 6 if self.is_crowded else draw.choice([0, 0, 6])
        return EngineConfig(
            block_size=self.size,
            num_blocks=-(-(LONGEST - 1) // self.size)
            + 1
            + (0 if self.is_crowded else draw.integer(0, 5)),  # the longest fits alone
            max_batch_tokens=draw.integer(2, 12),
            max_running_requests=3 if self.is_crowded else draw.integer(1, 3),
            max_model_len=LONGEST,
            num_host_blocks=num_host_blocks,
            preemption="swap" if num_host_blocks else "recompute",
            prefix_index=draw.choice(["hash", "radix"]),
            eviction=draw.choice(["lru", "lfu", "cost"]),
            overlap=draw.choice([0, 1, 2]),
        )

    def start(self, name: str) -> None:
        """A new engine, or one that has lost everything. What is under way to it arrives all the same."""
        boot = self.nodes[name].boot + 1 if name in self.nodes else 0
        engine, model = make_engine(self.configs[name], is_async=self.is_async, hash_function=self.hash_function)
        store = DeviceStore(engine, "hash", max_held_share=self.share)
        source = Source(name, store, self.network.send, lease_s=self.lease_s, boot=boot)
        intake = Intake(
            f"{name}/in", engine, store, self.network.send,
            retry_s=RETRY_S, timeout_s=TIMEOUT_S, hold_s=HOLD_S, boot=boot,
        )  # fmt: skip
        self.nodes[name] = Node(name, engine, model, source, intake, Replay(engine.kv.pool.num_blocks), boot)
        self.network.nodes[name] = source.on_message
        self.network.nodes[f"{name}/in"] = intake.on_message

    # --- what may happen ----------------------------------------------------------------------------------

    def act(self, draw: Draw) -> None:
        acts = [self.submit, self.wait, self.wait, self.wait]
        if self.live():
            acts.append(self.abort)
        if draw.integer(0, 7) == 0:
            acts = [self.restart]
        draw.choice(acts)(draw)

    def submit(self, draw: Draw) -> None:
        self.count += 1
        is_same = draw.choice([True, False])
        prompt = [0 if is_same else draw.integer(0, 1) for _ in range(draw.integer(1, LONGEST - 2))]
        params = SamplingParams(
            temperature=draw.choice([0.0, 9.0]),
            max_tokens=draw.integer(1, LONGEST - len(prompt)),
            seed=draw.integer(0, 9),
        )
        job = self.jobs[f"j{self.count}"] = Job(prompt, params, draw.choice([None, None, "a"]))
        if draw.choice([True, True, False]):
            self.prefill(f"j{self.count}")
        else:
            self.decode(f"j{self.count}", ["host", "disk"])
        assert job.where != "over"

    def prefill(self, name: str) -> None:
        job, node = self.jobs[name], self.nodes["p"]
        params = SamplingParams(temperature=job.params.temperature, max_tokens=1, seed=job.params.seed)
        request_id = f"{name}.{job.attempt}"
        node.engine.add_request(job.prompt, params, request_id=request_id, salt=job.salt)
        node.jobs[request_id] = name

    def decode(self, name: str, sources: list[str]) -> None:
        job, node = self.jobs[name], self.nodes["d"]
        job.where = "decode"
        request_id = f"{name}.{job.attempt}"
        node.jobs[request_id] = name
        node.intake.submit(request_id, job.prompt, job.params, sources, self.now_s, salt=job.salt)

    def live(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.where != "over"]

    def abort(self, draw: Draw) -> None:
        name = draw.choice(self.live())
        job = self.jobs[name]
        request_id = f"{name}.{job.attempt}"
        if job.where == "prefill":
            done = self.nodes["p"].engine.abort(request_id)
        else:
            done = self.nodes["d"].intake.abort(request_id, self.now_s)
        assert done != job.aborted, "row 87: an abort without effect"
        job.aborted = True

    def restart(self, draw: Draw) -> None:
        """Requests that were there are sent again: those of the prefill engine at once to the decode engine."""
        name = draw.choice(["p", "d"])
        self.note_transfers(self.nodes[name])
        self.start(name)
        for job_name in self.live():
            job = self.jobs[job_name]
            if job.where == ("prefill" if name == "p" else "decode"):
                job.attempt += 1
                job.aborted = False
                self.decode(job_name, draw.choice([[], ["p"], ["host", "disk"]]))

    def wait(self, draw: Draw) -> None:
        for _ in range(draw.integer(1, 4)):
            self.tick()

    # --- time ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """A second: messages arrive, everyone looks at the clock, every engine takes a step."""
        self.now_s += 1.0
        self.network.deliver(self.now_s)
        for one in (*self.sources.values(), *self.importers.values()):
            one.tick(self.now_s)
        for node in self.nodes.values():
            node.source.tick(self.now_s)
            node.intake.tick(self.now_s)
            for event in node.engine.step():
                if event.kind != "token":
                    self.on_end(node, node.engine.requests[event.request_id])
        self.audit()

    def on_end(self, node: Node, request: Request) -> None:
        name = node.jobs.pop(request.request_id)
        job = self.jobs[name]
        expected, _ = oracle(node.model, request, frozenset())
        if job.aborted:
            assert request.finish_reason == "abort"
            assert request.output_ids == expected[: request.num_output], "a wrong token before the abort"
            job.where = "over"
            return
        assert request.finish_reason == "length", request.error
        assert request.output_ids == expected, f"I36: a wrong token at {node.name}"
        if node.name == "p":
            self.decode(name, ["p"])
            return
        job.where, job.output = "over", request.output_ids
        salt = () if request.salt is None else (ExtraKey("salt", request.salt),)
        prefix = Prefix(tuple(request.token_ids[:-1]), salt)
        self.kept[f"{request.request_id}.{node.boot}"] = prefix
        self.importers["host"].pull(f"{request.request_id}.{node.boot}", "d", prefix, self.now_s)

    def pass_on(self, transfer: str, count: int | None, now_s: float) -> None:
        """What came to the host goes on to the disk."""
        self.ended(transfer, count, now_s)
        if count is not None:
            self.importers["disk"].pull(transfer, "host", self.kept[transfer], now_s)

    def ended(self, transfer: str, count: int | None, now_s: float) -> None:
        if count is None:
            self.failed += 1
        else:
            self.came += 1

    def note_transfers(self, node: Node) -> None:
        counts = node.intake.importer.counts
        self.came += counts["done"]
        self.failed += counts["failed"]

    # --- what must hold -----------------------------------------------------------------------------------

    def audit(self) -> None:
        for node in self.nodes.values():
            kv = node.engine.kv
            node.engine.check()
            node.replay.apply(node.engine.trace.events[node.replay.num_applied :])
            assert [len(holders) for holders in node.replay.holders] == kv.pool.ref_counts
            assert {b for b, cached in enumerate(node.replay.cached) if cached} == set(kv.groups[0].index.blocks())
            for block in kv.groups[0].index.blocks():
                assert node.model.is_written(block), "row 87: half a cache is found"
            self.audit_leases(node.source, self.lease_s)
            assert len(set(kv.holds.held())) <= self.share * (kv.pool.num_blocks - 1), "too much is held"
            for pull in node.intake.importer._pulls.values():
                assert self.now_s < pull.deadline_s, "row 86: the importer waits for ever"
        for tier in self.tiers.values():
            tier.check()
        for source in self.sources.values():
            self.audit_leases(source, 6.0)

    def audit_leases(self, source: Source, lease_s: float) -> None:
        assert source.counts["stale"] == 0, "I34: a leased block was given other content"
        for lease in source._leases.values():
            assert self.now_s < lease.expires_s <= self.now_s + lease_s, "I35: a lease past its time"

    def finish(self) -> None:
        """Nothing new comes: all ends, and all is let go."""
        for _ in range(600):
            if not self.live() and self.is_idle():
                break
            self.tick()
        assert not self.live(), f"no end of {self.live()}"
        assert self.is_idle(), "I35: a lease, a transfer or a hold without end"
        for node in self.nodes.values():
            assert node.engine.kv.pool.num_used == 0, "I5: idle with used blocks"
            assert not node.intake.refused
            self.note_transfers(node)

    def is_idle(self) -> bool:
        importers = [*self.importers.values(), *(node.intake.importer for node in self.nodes.values())]
        sources = [*self.sources.values(), *(node.source for node in self.nodes.values())]
        waits = any(i.num_pulls or i.num_held for i in importers) or any(s.num_leases for s in sources)
        return self.network.is_quiet and not waits and not any(n.engine.has_work() for n in self.nodes.values())


def run_transfers(case: int, acts: int = 40, folder: Path | None = None) -> TransferCallers:
    draw = SeededDraw(case)
    callers = TransferCallers(draw, folder)
    for _ in range(acts):
        callers.act(draw)
    callers.finish()
    return callers


def hand_off(case: int) -> None:
    """Over a good network nothing is computed twice, repeated, or held until its time is up."""
    draw = SeededDraw(case)
    callers = TransferCallers(draw)
    callers.network.loss = callers.network.doubling = 0.0
    callers.network.max_delay_s = draw.choice([0.0, 1.0])
    callers.share, callers.lease_s, callers.hash_function = 1.0, 15.0, digest128
    for name in "pd":
        callers.configs[name] = replace(callers.configs[name], num_blocks=40, max_batch_tokens=12)
        callers.start(name)
    prompt = [draw.integer(0, 1) for _ in range(draw.integer(1, LONGEST - 2))]
    params = SamplingParams(temperature=9.0, max_tokens=2, seed=case)
    callers.jobs["j"] = Job(prompt, params, draw.choice([None, "a"]))
    callers.prefill("j")
    callers.finish()
    source, decode = callers.nodes["p"].source, callers.nodes["d"]
    request = decode.engine.requests["j.0"]
    num_blocks = len(prompt) // callers.size
    assert request.num_cached == (len(prompt) - 1) // callers.size * callers.size, "computed again"
    assert source.counts == ({"ack": 1} if num_blocks else {}), "row 86: a lease that nobody ended"
    asked = [message for to, message in callers.network.log if to == "p"]
    assert [type(message) for message in asked] == [Ask, *([Fetch, Done] if num_blocks else [])], "said twice"
    other = (ExtraKey("salt", "b"),) if request.salt is None else ()
    assert decode.engine.kv.holds.find(prompt, other) == [], "I11: found under another salt"
