"""Faults in the pool, the prefix indexes, the block tables and the tiers' blocks: random callers of each kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.core.blocks import BlockPool
from minillm.core.kv.block_keys import BlockKeys, ExtraKey
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv.events import BlockEvents, PrefixReplica
from minillm.core.kv.eviction import PriorityEvictor
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv.radix import RadixIndex
from minillm.core.kv.swap import HostBlocks, Swapper
from minillm.core.kv.tables import BlockCopies
from minillm.core.kv_manager import KVManager

# Killed by random callers of the pool alone.
POOL_MUTANTS: dict[str, list[Edit]] = {
    "a block handed out twice": [Edit(BlockPool, "allocate", "self._unlink(block)", "pass")],
    "blocks handed out count as free": [Edit(BlockPool, "allocate", "self.num_free -= 1", "pass")],
    "epoch kept on reuse": [Edit(BlockPool, "allocate", "self.epochs[block] += 1", "pass")],
    "a block used again stays on the free list": [
        Edit(BlockPool, "touch", "self._take_out(block)", "self.num_free -= 1")
    ],
    "one holder more is not counted": [
        Edit(BlockPool, "touch", "self.ref_counts[block] += 1", "self.ref_counts[block] = 1")
    ],
    "freed while another table holds it": [
        Edit(BlockPool, "release", "if self.ref_counts[block]:", "if self.ref_counts[block] > 1:")
    ],
    "released more often than held": [Edit(BlockPool, "release", "if self.ref_counts[block] == 0:", "if False:")],
    "freed blocks are not counted": [Edit(BlockPool, "release", "self.num_free += 1", "pass")],
    "a block without content evicts one with": [Edit(BlockPool, "release", "if to_front:", "if False:")],
    "the null block may be held": [Edit(BlockPool, "_check_id", "0 < block", "0 <= block")],
    "linked one way": [
        Edit(BlockPool, "_link", "self._prev[block], self._next[block] = before, after", "self._next[block] = after")
    ],
}

# Killed by random callers of the manager, for the engine's requests do not do all that it offers.
MANAGER_MUTANTS: dict[str, list[Edit]] = {
    "shared block written": [Edit(CacheGroup, "missing", "ref_counts[table[written]] > 1", "ref_counts[0] > 1")],
    "copy not counted": [Edit(KVManager, "reserve", "sum(missing + is_shared for", "sum(missing for")],
    "copied though held alone": [Edit(CacheGroup, "missing", "ref_counts[table[written]] > 1", "ref_counts[0] < 1")],
    "copied block kept": [Edit(CacheGroup, "fill", "self._pool.release(source, to_front=False)", "pass")],
    "copy not recorded": [Edit(CacheGroup, "fill", "self._copies.add(source, target)", "pass")],
    "copy the wrong way": [Edit(CacheGroup, "fill", "add(source, target)", "add(target, source)")],
    "fork not counted": [Edit(CacheGroup, "fork", "self._pool.touch(block)", "pass")],
    "fork shares what is in flight": [
        Edit(CacheGroup, "fork", "table.blocks[:num_blocks]", "list(table.blocks)")
    ],
    "swapped blocks not copied": [Edit(Swapper, "_leave", "self._copies.add(source, target)", "pass")],
    "last block not swapped": [
        Edit(Swapper, "_store", "num_skipped : num_blocks]", "num_skipped : num_blocks - 1]")
    ],
    "host block shared that still fills up": [
        Edit(HostBlocks, "store", "if i < num_full:  # a", "if True:  # a"),
        Edit(HostBlocks, "store", "contents[:num_full]]", "contents]"),
        Edit(HostBlocks, "store", "known[i] if i < num_full else None", "known[i]"),
    ],
    "host room counted twice": [
        Edit(HostBlocks, "store", "len(contents) - sum(host is not None for host in known) > ", "len(contents) > ")
    ],
    "host blocks kept when back": [Edit(Swapper, "_return", "self._host.release(swapped.hosts)", "pass")],
    "host blocks of the dead kept": [Edit(Swapper, "drop", "self._host.release(swapped.hosts)", "pass")],
    "block of a later epoch joins": [
        Edit(Swapper, "_still_there", "self._pool.epochs[twin.block] != twin.epoch", "False")
    ],
    "free block joins uncached": [Edit(Swapper, "_still_there", " if self._pool.ref_counts[twin.block]", " if True")],
    "joining block not held": [Edit(Swapper, "swap_in", "self._pool.touch(block)", "pass")],
    "joining blocks counted as free": [Edit(CacheGroup, "needed", "len(found) + revived", "len(found)")],
    "swapped in without room": [
        Edit(Swapper, "swap_in", "request.num_known, found)", "request.num_computed_tokens, found)")
    ],
    "twin of a freed host block kept": [Edit(HostBlocks, "release", "self._forget_twin(host)", "pass")],
    "copy of a copy": [Edit(BlockCopies, "take", "sources.get(source, source)", "source")],
    "copies taken twice": [Edit(BlockCopies, "take", "self._pairs.clear()", "pass")],
    "kinds of keys untagged": [Edit(ExtraKey, "encoded", "self.kind.encode(), ", "")],
    "place of an image forgotten": [Edit(ExtraKey, "encoded", ", str(self.start - first).encode()", "")],
    "extra keys left out": [Edit(BlockKeys, "key", " + self.extras_of(block)", "")],
    "image left out": [Edit(BlockKeys, "extras_of", "first <= extra.start", "first == extra.start")],
    "chain behind a lost block goes on": [Edit(CacheGroup, "commit", "not self.index.is_valid(chain)", "False")],
    "removal not told": [Edit(BlockEvents, "on_remove", "self._tell(", "str(")],
    "parent's digest told": [Edit(BlockEvents, "on_index", "self.number, keys.digest(place)", "self.number, parent")],
    "router counts blocks behind a gap": [
        Edit(PrefixReplica, "cached_tokens", "and keys.digest(cached) in self._digests", "and self._digests")
    ],
    "evicted block keeps its place": [Edit(CacheGroup, "forget", "self.index.remove(block)", "0")],
}  # fmt: skip

# Killed by random callers of an index, against a dictionary of prefixes.
INDEX_MUTANTS: dict[str, list[Edit]] = {
    "hit on a place without a block": [Edit(HashIndex, "match", "if block == NULL_BLOCK", "if block < NULL_BLOCK")],
    "lost chain taken for whole": [Edit(HashIndex, "is_valid", "self._epochs[link.block] == link.epoch", "True")],
    "twin indexed over the first": [Edit(HashIndex, "insert", "if held != NULL_BLOCK", "if held < NULL_BLOCK")],
    "place dropped with others below": [Edit(HashIndex, "remove", " and not self._children[position]", "")],
    "place without use kept": [Edit(HashIndex, "remove", "while position != _ROOT", "while position == -2")],
    "places below not counted": [Edit(HashIndex, "remove", "self._children[above] -= 1", "pass")],
    "last block not reported": [Edit(HashIndex, "remove", "return self._blocks[above]", "return NULL_BLOCK")],
    "keys of a former place kept": [Edit(HashIndex, "_drop_position", "self._extras.pop(position, None)", "pass")],
    "run ends late": [Edit(RadixIndex, "_common", "min(len(node.blocks), limit)", "len(node.blocks)")],
    "run not compared": [Edit(RadixIndex, "_common", " and self._is(node, same, keys.key(first + same))", "")],
    "extra keys within a run": [Edit(RadixIndex, "_common", "not keys.has_extras and ", "")],
    "run goes on behind a lost block": [Edit(RadixIndex, "match", "and NULL_BLOCK in run", "and not run")],
    "walk goes on from within a run": [Edit(RadixIndex, "match", "if len(run) < len(child.blocks)", "if not run")],
    "split loses what hangs below": [
        Edit(RadixIndex, "_split", "= node.blocks[offset:], node.children", "= node.blocks[offset:], None")
    ],
    "split leaves blocks behind": [Edit(RadixIndex, "_split", "self._node_at[block] = lower", "pass")],
    "split cuts tokens only": [Edit(RadixIndex, "_split", ", node.blocks[offset:]\n", "\n")],
    "extra keys in the middle of a run": [Edit(RadixIndex, "_place", " or len(key) > self._width:", ":")],
    "run trimmed without its tokens": [
        Edit(RadixIndex, "_trim", "del node.tokens[len(node.blocks) * self._width :]", "pass")
    ],
    "run with others below is last": [Edit(RadixIndex, "is_last", "not node.children and ", "")],
}  # fmt: skip

# Killed by random callers of an evictor, against a list sorted anew each time.
EVICTION_MUTANTS: dict[str, list[Edit]] = {
    "clock stands still": [Edit(PriorityEvictor, "pop", "self._clock = entry[0]", "pass")],
    "hits not counted": [Edit(PriorityEvictor, "on_hit", "self._uses[block] += 1", "pass")],
    "uses of a former content": [Edit(PriorityEvictor, "on_index", "self._uses[block] = 1", "self._uses[block] += 1")],
    "cost of every block the same": [Edit(PriorityEvictor, "on_index", "self._cost(place)", "1.0")],
    "block evicted before those behind it": [Edit(PriorityEvictor, "pop", "not self._is_last(block)", "False")],
    "held block evicted": [Edit(PriorityEvictor, "pop", "self._live.get(block) is not entry", "False")],
    "last block forgotten": [
        Edit(PriorityEvictor, "on_remove", "heapq.heappush(self._heap, self._live[last])", "pass")
    ],
    "ties by number": [Edit(PriorityEvictor, "add", "(priority, self._count, block)", "(priority, block, block)")],
}  # fmt: skip
