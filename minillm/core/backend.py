"""The backend protocol: six methods, the whole seam between control plane and numerics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from minillm.core.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a loaded backend can hold."""

    num_blocks: int  # KV blocks, the null block 0 included
    block_size: int  # tokens in a block
    kv_bytes_per_token: int  # K and V, of all layers whose K/V one block holds
    weight_bytes: int
    max_model_len: int  # tokens of one sequence, the model's own limit
    vocab_size: int
    crossover_tokens: float = math.inf  # context at which a token's attention takes the FLOPs of its matrices
    window: int | None = None  # keys that a query sees in the layer that sees most, its own included; None is all
    other_windows: tuple[int | None, ...] = ()  # of layer groups 1, 2, ..., where they are split; ``window`` is 0's
    num_host_blocks: int = 0  # KV blocks in host memory, with the ids from num_blocks on


class Backend(Protocol):
    """Executes step plans. A backend owns weights and KV memory and knows nothing about requests."""

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        """Allocate KV memory; ``None`` picks the number of blocks from the memory at hand.

        Host blocks are only ever copied to and from; their ids follow those of the device.
        """

    def capacity(self) -> Capacity:
        """Sizes after ``load``."""

    def run(self, plan: StepPlan) -> StepResult:
        """Write the K/V of the plan's tokens, attend, and sample the rows that ask for it."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, target), before the next ``run``.

        Targets are distinct; every source is read as it was before the call.
        """

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the K/V of single tokens, (source, target) slots, before the next ``run``; else as ``copy_blocks``."""

    def close(self) -> None:
        """Release memory; calling it twice is fine."""


@runtime_checkable
class BlockPorter(Protocol):
    """A backend whose KV blocks can be taken elsewhere and come back, as bytes of a form that it alone reads."""

    def read_blocks(self, blocks: Sequence[int]) -> list[bytes]:
        """The content of whole blocks, all layers, K and V, once the steps before have run."""

    def write_blocks(self, contents: Sequence[tuple[int, bytes]]) -> None:
        """Put what ``read_blocks`` of this or an equal backend returned into blocks, before the next ``run``."""


@runtime_checkable
class LayerSplitter(Protocol):
    """A backend that can keep the K/V of layers with different windows in blocks of their own."""

    def split_layers(self) -> None:
        """From the next ``load`` on, a block is of one group of layers with one window, and plans have ``groups``.

        Group 0 is of the layers that see most. Nothing changes where all layers have the same window.
        """


class AsyncBackend(Backend, Protocol):
    """A backend that can be handed a step while an earlier one runs, as on a device with a queue of its own.

    Steps and copies take effect in the order in which they are handed over. So a block that is released
    while a step writes to it may be handed out at once: whoever gets it writes after that step.
    """

    def submit(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Start a step, and return what waits for its result. The plan is read before this returns.

        ``plan.drawn`` names inputs that are draws of the step submitted before it.
        """
