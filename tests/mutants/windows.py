"""Faults in what a sliding window leaves behind: workloads and callers on a model with a window kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.core.builder import PlanBuilder
from minillm.core.commit import Committer
from minillm.core.engine import Engine
from minillm.core.kv import prefix, radix
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv.swap import Swapper
from minillm.core.kv.window import Window, WindowedGroup
from minillm.core.kv_manager import KVManager
from minillm.core.observe.replay import Replay

# Killed by workloads of the engine.
WINDOW_MUTANTS: dict[str, list[Edit]] = {
    "left a token early": [Edit(Window, "_kept", "self.tokens - 1, self.block_size", "self.tokens - 2, 1")],
    "left a block early": [
        Edit(Window, "num_skipped_blocks", "// self.block_size", "// self.block_size + (num_computed_tokens > 8)")
    ],
    "left a block late": [Edit(Window, "num_skipped_blocks", "- self._kept()", "- self._kept() - 3")],
    "never left": [Edit(WindowedGroup, "free_skipped_blocks", "if end <= first:", "if True:")],
    "left by tokens that a draft may lose": [
        Edit(
            WindowedGroup,
            "free_skipped_blocks",
            "num_computed_tokens)",
            "num_computed_tokens + request.num_in_flight + 1)",
        )
    ],
    "left blocks kept": [
        Edit(WindowedGroup, "free_skipped_blocks", "in skipped:", "in skipped[:0]:")
    ],
    "another block is left": [
        Edit(WindowedGroup, "free_skipped_blocks", "skipped = table.blocks[first:end]", "skipped = table.blocks[-1:]")
    ],
    "left though a draft model reads it": [
        Edit(Engine, "__init__", " or (speculation is not None and", " or (False and")
    ],
    "most blocks a block too few": [Edit(Window, "most_blocks", "+ self.span + size - 1)", "+ self.span - size)")],
    "leaving is not replayed": [Edit(Replay, "_apply", "table[table.index(block)] = NULL_BLOCK", "pass")],
    "hit a block short of the window": [Edit(Window, "reach", "-(-self._kept() // self.block_size)", "1")],
}  # fmt: skip

# Killed by workloads on a model with cache groups.
GROUP_MUTANTS: dict[str, list[Edit]] = {
    "another group's tables": [
        Edit(PlanBuilder, "build", "[group.tables[request_id].blocks", "[self._kv.table(request_id)")
    ],
    "another group's window": [
        Edit(Engine, "__init__", "=capacity.other_windows", "=(capacity.window,) * len(capacity.other_windows)")
    ],
    "another group's slots": [
        Edit(PlanBuilder, "build", "(slots_of(plan, tables, len(decodes)), tables)", "(plan.slot_mapping, tables)")
    ],
    "a longer hit than all groups serve": [Edit(KVManager, "_lookup", "if all(", "if any(")],
    "room for one group only": [Edit(KVManager, "needed", "sum(", "max(")],
    "reserved without room": [Edit(KVManager, "reserve", "> self.pool.num_free", "> self.pool.num_free + 1")],
    "one group committed": [Edit(KVManager, "commit", "in self.groups", "in self.groups[:1]")],
    "one group forked": [Edit(KVManager, "fork", "in self.groups", "in self.groups[:1]")],
    "one group rewound": [Edit(KVManager, "rewind", "in self.groups", "in self.groups[:1]")],
    "one group released": [Edit(KVManager, "release", "in self.groups", "in self.groups[:1]")],
    "evicted from its own group's index alone": [
        Edit(KVManager, "_allocate", "in self.groups:", "in self.groups[:1]:")
    ],
    "stored in part and not given up": [Edit(Swapper, "swap_out", "self._host.release(hosts)", "pass")],
    "what comes back is not held": [Edit(Swapper, "swap_in", "self._pool.touch(block)", "pass")],
    "swapped in without room for all": [Edit(Swapper, "swap_in", "> self._pool.num_free", "> 2 * self._pool.num_free")],
    "a drafted path moved in one group": [
        Edit(Committer, "_keep_accepted", "in self._kv.groups", "in self._kv.groups[:1]")
    ],
    "replayed as another group's": [Edit(Replay, "_apply", "if event.group:", "if event.group > 1:")],
}  # fmt: skip

# Killed by random callers of the manager.
WINDOW_CALL_MUTANTS: dict[str, list[Edit]] = {
    "a hit's window is allocated again": [
        Edit(KVManager, "needed", "its.held)", "its.held) + its.num_skipped")
    ],
    "null block held by a hit": [Edit(CacheGroup, "start", "hit.held", "hit.blocks")],
    "a fork forgets what was left": [Edit(CacheGroup, "fork", ", table.num_skipped)", ")")],
    "a swapped table forgets what was left": [Edit(Swapper, "_leave", "table.keys, table.num_skipped)", "table.keys)")],
    "swapped in at the beginning": [Edit(Swapper, "_return", "[*[NULL_BLOCK] * num_skipped, *blocks]", "blocks")],
    "null block freed": [Edit(CacheGroup, "_drop", "block != NULL_BLOCK", "True")],
    "filed from the root without its beginning": [Edit(CacheGroup, "commit", "if table.num_skipped:", "if False:")],
}  # fmt: skip

# Killed by random callers of an index.
REACH_MUTANTS: dict[str, list[Edit]] = {
    "hit over a gap": [Edit(prefix, "within_reach", "0 if block == NULL_BLOCK else run + 1", "run + 1")],
    "blocks before the reach are handed out": [
        Edit(radix, "within_reach", "[NULL_BLOCK] * num_skipped + blocks[num_skipped:end]", "blocks[:end]")
    ],
    "a short prefix is out of reach": [Edit(radix, "within_reach", "min(reach, i + 1)", "reach")],
}  # fmt: skip
