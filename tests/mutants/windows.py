"""Faults in what a sliding window leaves behind: workloads and callers on a model with a window kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.core.builder import PlanBuilder
from minillm.core.commit import Committer
from minillm.core.engine import Engine
from minillm.core.kv import prefix, radix
from minillm.core.kv.layer_groups import GroupedKV
from minillm.core.kv.window import Window
from minillm.core.kv_manager import KVManager
from minillm.core.observe.replay import Replay

# Killed by workloads of the engine.
WINDOW_MUTANTS: dict[str, list[Edit]] = {
    "left a token early": [Edit(Window, "_kept", "self.tokens - 1, self.block_size", "self.tokens - 2, 1")],
    "left a block early": [
        Edit(Window, "num_gone", "// self.block_size", "// self.block_size + (num_computed_tokens > 8)")
    ],
    "left a block late": [Edit(Window, "num_gone", "- self._kept()", "- self._kept() - 3")],
    "never left": [Edit(KVManager, "commit", "if self.window is not None", "if False")],
    "left by tokens that a draft may lose": [
        Edit(KVManager, "_leave_behind", "num_computed_tokens)", "num_computed_tokens + request.num_in_flight + 1)")
    ],
    "left blocks kept": [
        Edit(KVManager, "_leave_behind", "self.pool.release(block, to_front=block not in self.index)", "pass")
    ],
    "another block is left": [
        Edit(KVManager, "_leave_behind", "left = table.blocks[first:end]", "left = table.blocks[-1:]")
    ],
    "left though a draft model reads it": [
        Edit(Engine, "__init__", " or (speculation is not None and", " or (False and")
    ],
    "most blocks a block too few": [Edit(Window, "most_blocks", "+ self.span + size - 1)", "+ self.span - size)")],
    "leaving is not replayed": [Edit(Replay, "_apply", "table[table.index(block)] = NULL_BLOCK", "pass")],
    "hit a block short of the window": [Edit(Window, "reach", "-(-self._kept() // self.block_size)", "1")],
}  # fmt: skip

# Killed by workloads on a model with layer groups.
GROUP_MUTANTS: dict[str, list[Edit]] = {
    "another group's tables": [Edit(PlanBuilder, "build", "[kv.table(", "[self._kv.table(")],
    "another group's window": [
        Edit(Engine, "__init__", "= capacity.other_windows", '= (options["window"],) * len(capacity.other_windows)')
    ],
    "another group's slots": [
        Edit(PlanBuilder, "build", "(slots_of(plan, tables, len(decodes)), tables)", "(plan.slot_mapping, tables)")
    ],
    "a longer hit than all groups serve": [Edit(GroupedKV, "lookup", "if all(", "if any(")],
    "room for one group only": [Edit(GroupedKV, "_needed", "sum(", "max(")],
    "reserved without room": [Edit(GroupedKV, "reserve", "> self.pool.num_free", "> self.pool.num_free + 1")],
    "one group committed": [Edit(GroupedKV, "commit", "in self._sharing", "in [self]")],
    "one group forked": [Edit(GroupedKV, "fork", "in self._sharing", "in [self]")],
    "one group rewound": [Edit(GroupedKV, "rewind", "in self._sharing", "in [self]")],
    "one group released": [Edit(GroupedKV, "release", "in self._sharing", "in [self]")],
    "evicted from its own group's index alone": [
        Edit(KVManager, "_allocate", "for owner in self._sharing:", "for owner in [self]:")
    ],
    "stored in part and not given up": [Edit(GroupedKV, "swap_out", "self.host.release(hosts)", "pass")],
    "what comes back is not held": [Edit(GroupedKV, "swap_in", "self._hold(stays)", "pass")],
    "swapped in without room for all": [Edit(GroupedKV, "swap_in", "> self.pool.num_free", "> 2 * self.pool.num_free")],
    "a drafted path moved in one group": [
        Edit(Committer, "_keep_accepted", "(self._kv, *self._kv.others)", "(self._kv,)")
    ],
    "replayed as another group's": [Edit(Replay, "_apply", "if event.group:", "if event.group > 1:")],
}  # fmt: skip

# Killed by random callers of the manager.
WINDOW_CALL_MUTANTS: dict[str, list[Edit]] = {
    "a hit's window is allocated again": [
        Edit(KVManager, "_needed", "num_tokens, held)", "num_tokens, held) + len(held) - len(hit.blocks)")
    ],
    "null block held by a hit": [Edit(KVManager, "_start", "hit.blocks[hit.num_gone :]", "hit.blocks")],
    "a fork forgets what was left": [Edit(KVManager, "fork", ", table.num_gone)", ")")],
    "a swapped table forgets what was left": [Edit(KVManager, "_leave", "table.keys, table.num_gone)", "table.keys)")],
    "swapped in at the beginning": [Edit(KVManager, "_return", "[*[NULL_BLOCK] * gone, *blocks]", "blocks")],
    "null block freed": [Edit(KVManager, "_drop", "block != NULL_BLOCK", "True")],
    "filed from the root without its beginning": [Edit(KVManager, "_index", "if table.num_gone:", "if False:")],
}  # fmt: skip

# Killed by random callers of an index.
REACH_MUTANTS: dict[str, list[Edit]] = {
    "hit over a gap": [Edit(prefix, "within_reach", "0 if block == NULL_BLOCK else run + 1", "run + 1")],
    "blocks before the reach are handed out": [
        Edit(radix, "within_reach", "[NULL_BLOCK] * gone + blocks[gone:end]", "blocks[:end]")
    ],
    "a short prefix is out of reach": [Edit(radix, "within_reach", "min(reach, i + 1)", "reach")],
}  # fmt: skip
