"""The engine's configuration: one frozen dataclass, validated where it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

PolicyName = Literal["static", "dynamic", "continuous"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and rules of one engine. Invalid values raise ``ValueError``."""

    block_size: int = 16  # tokens in a KV block
    num_blocks: int | None = None  # KV blocks, the null block 0 included; None asks the backend
    max_batch_tokens: int = 2048  # token budget of one step
    max_running_requests: int = 64  # batch size of the static and dynamic policies as well
    max_model_len: int | None = None  # prompt and output of one request; None takes the model's limit
    policy: PolicyName = "continuous"
    max_wait_s: float = 0.05  # dynamic policy: how long the oldest request waits for a full batch
    chunked_prefill: bool = True  # False: a prompt runs whole, in one step
    prefix_caching: bool = True
    seed: int = 0  # for requests that bring none
    debug_checks: bool = False  # check every structure after every step
    record_trace: bool = True  # the log grows with the run: turn it off in a process that serves for days

    def __post_init__(self) -> None:
        _check_int("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            _check_int("num_blocks", self.num_blocks, 2, "block 0 is the null block, so one more is needed")
        _check_int("max_batch_tokens", self.max_batch_tokens, 1)
        _check_int("max_running_requests", self.max_running_requests, 1)
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len, 2, "one prompt token and one output token")
        _check_int("seed", self.seed, 0)
        if self.policy not in get_args(PolicyName):
            raise ValueError(f"policy is {self.policy!r}: choose from {', '.join(get_args(PolicyName))}")
        if isinstance(self.max_wait_s, bool) or not isinstance(self.max_wait_s, (int, float)):
            raise ValueError(f"max_wait_s is {self.max_wait_s!r}: give seconds as a number")
        if not math.isfinite(self.max_wait_s) or self.max_wait_s < 0:
            raise ValueError(f"max_wait_s is {self.max_wait_s}: give finite seconds, 0 or more")
        for name in ("chunked_prefill", "prefix_caching", "debug_checks", "record_trace"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: use True or False")


def _check_int(name: str, value: object, low: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} is {value!r}, it must be a whole number of at least {low}{why and ': '}{why}")
