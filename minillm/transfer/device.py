"""An engine's cached blocks as a ``BlockStore``: what transfers read from the device, and write to it.

Blocks are found and filed in the engine's own prefix index, so a request whose prefix came from elsewhere is
an ordinary request with a hit, and one whose prefix did not come is an ordinary request without.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.core.backend import BlockPorter
from minillm.core.engine import Engine
from minillm.transfer.protocol import Prefix


class DeviceStore:
    """Over one engine with prefix caching, whose backend's blocks can be read and written from outside."""

    def __init__(self, engine: Engine, model: str, *, max_held_share: float = 0.5) -> None:
        """``model``: names the weights, and the type of the K/V. At most ``max_held_share`` of the pool is held.

        ``ValueError`` without a prefix cache, or with several cache groups; ``TypeError`` for a backend that cannot
        give out blocks.
        """
        if not engine.config.prefix_caching:
            raise ValueError("prefix_caching is off: blocks that come from elsewhere are found by their prefix alone")
        if len(engine.kv.groups) > 1:
            raise ValueError(
                f"blocks of {len(engine.kv.groups)} cache groups cannot be handed over, those of one can: "
                "set free_behind_window=False, then all layers share their blocks"
            )
        if not isinstance(engine.backend, BlockPorter):
            raise TypeError(f"{type(engine.backend).__name__} has no read_blocks and write_blocks")
        self._engine = engine
        self._porter: BlockPorter = engine.backend
        self._size = engine.config.block_size
        self._layout = f"{model}, blocks of {self._size} tokens, {engine.capacity.kv_bytes_per_token} bytes a token"
        self._max_held = int(max_held_share * (engine.capacity.num_blocks - 1))
        self._fresh: dict[str, tuple[int, int]] = {}  # transfer -> first place that is to come, steps to await

    @property
    def layout(self) -> str:
        return self._layout

    def find(self, prefix: Prefix) -> list[int]:
        return self._engine.kv.holds.find(prefix.token_ids, prefix.extras)

    def epoch(self, slot: int) -> int:
        return self._engine.kv.pool.epochs[slot]

    def hold(self, holder: str, slots: Sequence[int]) -> bool:
        if not self._may_hold(slots, 0):
            return False
        self._engine.kv.holds.hold(holder, slots)
        return True

    def read(self, slot: int) -> bytes | None:
        # An indexed block is full and computed: the step that wrote it has landed, and nobody writes to it.
        return self._porter.read_blocks([slot])[0]

    def reserve(self, holder: str, prefix: Prefix, count: int) -> list[int] | None:
        count = min(count, len(prefix.token_ids) // self._size)
        holds, here = self._engine.kv.holds, self.find(prefix)[:count]
        if not self._may_hold(here, count - len(here)):
            return None
        holds.hold(holder, here)
        if not holds.take(holder, count - len(here)):
            holds.let_go(holder)
            return None
        # A copy that was decided before is made with the next step that is planned.
        settled = self._engine.num_planned + holds.await_copies(holder)
        self._fresh[holder] = len(here), settled
        return list(range(len(here), count))

    def is_settled(self, holder: str) -> bool:
        """Whether all steps have landed that may still write to the room, or copy its former content elsewhere."""
        return self._engine.num_steps >= self._fresh[holder][1]

    def fill(self, holder: str, prefix: Prefix, payloads: dict[int, bytes]) -> None:
        first, _ = self._fresh.pop(holder)
        holds = self._engine.kv.holds
        blocks = holds.blocks(holder)
        if sorted(payloads) != list(range(first, len(blocks))):
            raise ValueError(f"{holder} has room for blocks {first} to {len(blocks) - 1}, {sorted(payloads)} came")
        self._porter.write_blocks([(blocks[place], payload) for place, payload in payloads.items()])
        holds.file(holder, prefix.token_ids, prefix.extras)

    def drop(self, holder: str) -> None:
        self._fresh.pop(holder, None)
        self._engine.kv.holds.let_go(holder)

    def _may_hold(self, more: Sequence[int], fresh: int) -> bool:
        return len({*self._engine.kv.holds.held(), *more}) + fresh <= self._max_held
