"""What can be set about one engine of the desk: each lever with its choices, and the configuration they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from minillm.core.config import EngineConfig
from minillm.speculation import Method, Speculate


class DeskError(ValueError):
    """What the reader asked for cannot be had: the message names the value, the limit and the way out."""


@dataclass(frozen=True)
class Lever:
    """One setting of an engine: ``options`` maps each value to what the reader sees."""

    name: str
    label: str
    options: Mapping[str, str]
    metric: str  # of `compare.METRICS`: what the lever is meant to change


LEVERS = {
    lever.name: lever
    for lever in (
        Lever("policy", "Batching", {"continuous": "continuous", "dynamic": "dynamic", "static": "static"}, "e2e_s"),
        Lever("batch", "Largest batch", {str(n): str(n) for n in (1, 2, 4, 8, 16, 32, 64)}, "tokens_per_s"),
        Lever("prefix_cache", "Prefix cache", {"on": "on", "off": "off"}, "ttft_s"),
        Lever(
            "chunk",
            "Prefill",
            {"whole": "whole prompts", **{str(n): f"chunks of {n}" for n in (16, 32, 64, 128, 256, 512)}},
            "itl_p99_s",
        ),
        Lever("preemption", "Preempted requests", {"recompute": "computed again", "swap": "swapped"}, "prefill_tokens"),
        Lever(
            "speculate",
            "Drafts",
            {"none": "none", "ngram": "n-gram", "suffix": "suffix", "draft": "draft model", "tree": "token tree"}
            | {"medusa": "Medusa heads", "eagle": "EAGLE head", "mtp": "MTP head"},
            "tokens_per_step",
        ),
        Lever(
            "draft_tokens",
            "Tokens of a draft",
            {"usual": "as usual", **{str(n): str(n) for n in (1, 2, 4, 8)}},
            "tokens_per_step",
        ),
        Lever(
            "draft_length", "Length of drafts", {"fixed": "always the same", "adaptive": "by acceptance"}, "acceptance"
        ),
        Lever(
            "pool",
            "KV pool (tokens)",
            {str(n): f"{n:,}" for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384)},
            "e2e_s",
        ),
        Lever("block", "Block size (tokens)", {str(n): str(n) for n in (1, 4, 8, 16, 32)}, "kv_peak_bytes"),
        Lever("eviction", "Evicted first", {"lru": "least recently used", "lfu": "least often used"}, "hit_rate"),
        Lever(
            "order",
            "Next in the queue",
            {"fcfs": "first come", "shortest": "shortest", "fair": "fair share"},
            "e2e_s",
        ),
        Lever("temperature", "Temperature of new requests", {t: t for t in ("0", "0.3", "0.7", "1", "1.5")}, "variety"),
        Lever("grammar", "New requests answer", {"none": "as they like", "schema": "by a JSON schema"}, "valid_json"),
        Lever("kv_cache", "KV cache", {"on": "on", "off": "off: all tokens again"}, "itl_s"),
        Lever("link", "Link to the host (modelled)", {str(n): f"PCIe {n}.0 x16" for n in (3, 4, 5)}, "e2e_s"),
    )
}

OF_REQUESTS = frozenset(["temperature", "grammar"])  # levers that need no new engine: they hold for new requests


@dataclass(frozen=True)
class Setup:
    """One engine's levers, each a value of its options."""

    policy: str = "continuous"
    batch: str = "8"
    prefix_cache: str = "on"
    chunk: str = "whole"
    preemption: str = "recompute"
    speculate: str = "none"
    draft_tokens: str = "usual"
    draft_length: str = "fixed"
    pool: str = "1024"
    block: str = "16"
    eviction: str = "lru"
    order: str = "fcfs"
    temperature: str = "0.7"
    grammar: str = "none"
    kv_cache: str = "on"
    link: str = "5"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, options = getattr(self, field.name), LEVERS[field.name].options
            if value not in options:
                raise DeskError(f"{field.name} is {value!r}: choose from {', '.join(options)}")

    @classmethod
    def of(cls, levers: Mapping[str, Any]) -> Setup:
        """From named values, the others at their defaults. Raises :class:`DeskError`."""
        unknown = sorted(set(levers) - set(LEVERS))
        if unknown:
            raise DeskError(f"there is no lever {unknown[0]!r}: choose from {', '.join(LEVERS)}")
        return cls(**{name: str(value) for name, value in levers.items()})

    def with_lever(self, name: str, value: str) -> Setup:
        return Setup.of({**self.changed(), name: value})

    def changed(self) -> dict[str, str]:
        """The levers that do not stand at their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def config(self) -> EngineConfig:
        """The engine's configuration."""
        blocks = max(int(self.pool) // int(self.block), 1)
        plain = EngineConfig(
            block_size=int(self.block),
            num_blocks=blocks + 1,  # and the null block
            max_running_requests=int(self.batch),
            policy=cast(Any, self.policy),
            prefix_caching=self.prefix_cache == "on",
            eviction=cast(Any, self.eviction),
            order=cast(Any, self.order),
            record_trace=True,
        )
        if self.chunk != "whole":
            plain = replace(plain, chunk_size=int(self.chunk))
        if self.preemption == "swap":
            plain = replace(plain, preemption="swap", num_host_blocks=2 * blocks)
        return plain

    def speculation(self) -> Speculate | None:
        """How the engine drafts; None without drafts."""
        if self.speculate == "none":
            return None
        tokens = None if self.draft_tokens == "usual" else int(self.draft_tokens)
        return Speculate(cast(Method, self.speculate), draft_tokens=tokens, adaptive=self.draft_length == "adaptive")


def _within(label: str) -> str:
    """A label as it stands within a sentence."""
    return label if label[1].isupper() else label[0].lower() + label[1:]


def described(one: Setup, other: Setup) -> str:
    """What tells ``one`` from ``other``, in words: ``prefix cache off``."""
    parts = [
        f"{_within(lever.label)} {lever.options[getattr(one, name)]}"
        for name, lever in LEVERS.items()
        if getattr(one, name) != getattr(other, name)
    ]
    return ", ".join(parts) or "the same settings"
