"""All that makes a run again: requests, levers of both sides, clock and model, as an address carries them."""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from visualizers.desk.asks import Ask, from_records
from visualizers.desk.setup import LEVERS, DeskError, Setup

MOST_RATE = 64.0  # requests a second
_LONGEST = 4000  # characters in an address
_LARGEST = 200_000  # bytes unpacked
VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """What the desk opens with. ``lever`` is the one that the chapter is about; ``b`` is the other side's setup."""

    title: str = "The engine"
    lever: str = "policy"
    a: Setup = field(default_factory=Setup)
    b: Setup | None = None
    requests: tuple[Ask, ...] = ()
    prompts: tuple[str | int, ...] = ("The state of our union is",)  # by turns, for requests at a rate and bursts
    max_tokens: int = 48  # of those
    rate: float = 0.0  # requests/s that arrive at random, for ever
    speed: float = 1.0
    clock: str = "machine"
    model: str = "tiny"
    rounds: int = 1  # how many times a comparison is run from the start

    def __post_init__(self) -> None:
        if self.lever not in LEVERS:
            raise DeskError(f"there is no lever {self.lever!r}: choose from {', '.join(LEVERS)}")
        if not (math.isfinite(self.rate) and 0 <= self.rate <= MOST_RATE):
            raise DeskError(f"{self.rate} requests a second: give 0 to {MOST_RATE:.0f}")
        if not (math.isfinite(self.speed) and 0 < self.speed <= 100):
            raise DeskError(f"the speed is {self.speed}: give a number above 0, 100 at most")
        if not 1 <= self.rounds <= 20:
            raise DeskError(f"{self.rounds} rounds: give 1 to 20")

    def record(self) -> dict[str, Any]:
        """Everything but what the chapter gives: its title, its lever and its prompts."""
        return {
            "v": VERSION, "a": self.a.changed(), "b": None if self.b is None else self.b.changed(),
            "requests": [ask.record() for ask in self.requests], "rate": self.rate, "speed": self.speed,
            "clock": self.clock, "model": self.model, "rounds": self.rounds,
        }  # fmt: skip

    def packed(self) -> str:
        """For an address."""
        data = zlib.compress(json.dumps(self.record(), separators=(",", ":")).encode(), 9)
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    def opened(self, packed: str) -> Recipe:
        """This recipe with what an address says. Raises :class:`DeskError` where it can't be read."""
        if len(packed) > _LONGEST:
            raise DeskError(f"the address has a recipe of {len(packed):,} characters, the limit is {_LONGEST:,}")
        try:
            unpack = zlib.decompressobj()
            data = unpack.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _LARGEST)
            found = json.loads(data)
        except (binascii.Error, zlib.error, ValueError):
            raise DeskError("the address has a recipe that cannot be read: it was cut or changed on its way") from None
        return self.with_record(found)

    def with_record(self, found: Any) -> Recipe:
        if not isinstance(found, Mapping) or found.get("v") != VERSION:
            raise DeskError("the recipe is of another version of the desk")
        try:
            return Recipe(
                title=self.title,
                lever=self.lever,
                a=Setup.of(found["a"]),
                b=None if found["b"] is None else Setup.of(found["b"]),
                requests=from_records(found["requests"]),
                prompts=self.prompts,
                max_tokens=self.max_tokens,
                rate=float(found["rate"]),
                speed=float(found["speed"]),
                clock=str(found["clock"]),
                model=str(found["model"]),
                rounds=int(found["rounds"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DeskError(f"the recipe cannot be read: {error}") from error
