"""The engine's configuration: one frozen dataclass, validated where it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from minillm.core.kv.eviction import EvictionName

IndexName = Literal["hash", "radix"]
PolicyName = Literal["static", "dynamic", "continuous"]
PreemptionName = Literal["recompute", "swap"]
OrderName = Literal["fcfs", "priority", "shortest", "fair", "deadline"]
_SWITCHES = ("shed_late", "chunked_prefill", "prefix_caching", "free_behind_window", "debug_checks", "record_trace")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and rules of one engine. Invalid values raise ``ValueError``."""

    block_size: int = 16  # tokens in a KV block
    num_blocks: int | None = None  # KV blocks, the null block 0 included; None asks the backend
    num_host_blocks: int = 0  # blocks in host memory that preempted requests can be swapped to
    preemption: PreemptionName = "recompute"  # what becomes of a preempted request's K/V: see `minillm.core.scheduler`
    max_batch_tokens: int = 2048  # token budget of one step
    max_running_requests: int = 64  # batch size of the static and dynamic policies as well
    max_model_len: int | None = None  # prompt and output of one request; None takes the model's limit
    policy: PolicyName = "continuous"
    max_wait_s: float = 0.05  # dynamic policy: how long the oldest request waits for a full batch
    order: OrderName = "fcfs"  # who of the waiting is next, and who gives way: see `minillm.core.policies.order`
    ageing_tokens_per_s: float = 50.0  # order "shortest": what a second of waiting is worth
    ttft_slo_s: float = 10.0  # objectives of requests that bring none; order "deadline" and ``shed_late`` use them
    tpot_slo_s: float = 1.0
    max_waiting_requests: int | None = None  # who comes on top of so many that wait is refused; None: nobody is
    max_waiting_tokens: int | None = None  # the same for their tokens
    shed_late: bool = False  # refuse whose predicted TTFT passes its objective
    chunked_prefill: bool = True  # False: a prompt runs whole, in one step
    chunk_size: int | None = None  # most tokens of one request's prompt in a step; None: the whole budget
    prefix_caching: bool = True
    prefix_index: IndexName = "hash"  # how cached prefixes are found: by chained digests or in a radix tree
    free_behind_window: bool = True  # give blocks back that no layer's sliding window reaches: `minillm.core.kv.window`
    eviction: EvictionName = "lru"  # which cached block is given up first: see `minillm.core.kv.eviction`
    overlap: int = 0  # steps planned while one runs: 0 waits for each, 1 (or True) keeps the backend busy
    seed: int = 0  # for requests that bring none
    debug_checks: bool = False  # check every structure after every step
    record_trace: bool = False  # every decision in ``Engine.trace``: it grows with the run
    # How many ended requests, and how many steps, ``Engine.requests`` and ``Engine.metrics`` know of; None: all, and
    # then they grow with the run.
    keep_ended: int | None = 1024

    def __post_init__(self) -> None:
        _check_int("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            _check_int("num_blocks", self.num_blocks, 2, "block 0 is the null block, so one more is needed")
        _check_int("num_host_blocks", self.num_host_blocks, 0)
        _check_int("max_batch_tokens", self.max_batch_tokens, 1)
        _check_int("max_running_requests", self.max_running_requests, 1)
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len, 2, "one prompt token and one output token")
        _check_int("overlap", int(self.overlap) if isinstance(self.overlap, bool) else self.overlap, 0)
        _check_int("seed", self.seed, 0)
        if self.keep_ended is not None:
            _check_int("keep_ended", self.keep_ended, 1)
        if self.chunk_size is not None:
            _check_int("chunk_size", self.chunk_size, 1)
            if not self.chunked_prefill:
                raise ValueError(f"chunk_size is {self.chunk_size:,} without chunked_prefill: leave one of them out")
        for name in ("max_waiting_requests", "max_waiting_tokens"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 1)
        _check_choice("preemption", self.preemption, get_args(PreemptionName))
        if (self.preemption == "swap") != (self.num_host_blocks > 0):
            raise ValueError(
                f"preemption is {self.preemption!r} with {self.num_host_blocks:,} num_host_blocks: "
                f"'swap' needs some, 'recompute' uses none"
            )
        _check_choice("policy", self.policy, get_args(PolicyName))
        _check_choice("order", self.order, get_args(OrderName))
        _check_choice("prefix_index", self.prefix_index, get_args(IndexName))
        _check_choice("eviction", self.eviction, get_args(EvictionName))
        check_positive("max_wait_s", self.max_wait_s, "seconds", or_zero=True)
        check_positive("ageing_tokens_per_s", self.ageing_tokens_per_s, "tokens a second")
        check_positive("ttft_slo_s", self.ttft_slo_s, "seconds")
        check_positive("tpot_slo_s", self.tpot_slo_s, "seconds")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: use True or False")

    @property
    def sheds_load(self) -> bool:
        """Whether a request may be refused because others wait."""
        return self.shed_late or self.max_waiting_requests is not None or self.max_waiting_tokens is not None

    @property
    def span_tokens(self) -> int | None:
        """Most tokens of one request that are computed at once, over all steps in flight; None: all it has."""
        if not self.chunked_prefill:
            return None
        return min(self.max_batch_tokens, self.chunk_size or self.max_batch_tokens) * (1 + self.overlap)


def check_positive(name: str, value: object, unit: str, *, or_zero: bool = False) -> None:
    """``ValueError`` unless ``value`` is a finite number above 0, or 0 where that is allowed."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}: give {unit} as a number")
    if not math.isfinite(value) or value < 0 or (value == 0 and not or_zero):
        raise ValueError(f"{name} is {value}: give finite {unit}, {'0 or more' if or_zero else 'above 0'}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose from {', '.join(choices)}")


def _check_int(name: str, value: object, low: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} is {value!r}, it must be a whole number of at least {low}{why and ': '}{why}")
