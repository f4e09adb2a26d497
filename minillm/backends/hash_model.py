"""A model whose next token is a hash of the whole prefix, read through the slots: every wrong read shows.

Each slot remembers exactly which prefix its "K/V" was computed from. A read that finds an unwritten,
poisoned or foreign prefix raises ``WrongReadError`` or, where the backend cannot know better, continues
from the prefix it found, which changes the output. No numerics, so equal ids are demanded exactly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from minillm.core.backend import Capacity
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import SamplingParams, distribution, sample
from minillm.core.sampling.logprobs import token_logprobs
from minillm.core.sampling.shaping import Transform
from minillm.speculate.rejection import draw_against

_MASK64 = (1 << 64) - 1
_EMPTY = 0  # the node of the empty prefix
_MOST_UNREAD = 4096  # prefixes that no slot leads to; as many as those that slots lead to may come on top
_GROUP = 1 << 40  # in a slot: the layer group that wrote it times this, and the node


class WrongReadError(RuntimeError):
    """A slot that should hold the K/V of a prefix does not."""


class _Prefix(NamedTuple):
    """A node of the tree of prefixes: its parent's id, its length, and a hash of all its tokens."""

    parent: int
    length: int
    digest: int


class HashModel:
    """Implements ``Backend``. Sizes are those of a pretended model; ``default_blocks`` is what ``None`` loads."""

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        max_model_len: int = 4096,
        kv_bytes_per_token: int = 1024,
        weight_bytes: int = 1_000_000,
        default_blocks: int = 1024,
        crossover_tokens: float = 4096.0,
        window: int | None = None,
        other_windows: tuple[int | None, ...] = (),
    ) -> None:
        """``window``: tokens that a query reads, its own included; None: all. A token goes on from the one before.

        ``other_windows``: of more layer groups, each of which sees no more than the first; see ``split_layers``.
        """
        for one in (window, *other_windows):
            if one is not None and one < 2:
                raise ValueError(f"a window of {one}: a token reads at least the one before it, take 2 or more")
        self._window, self._other_windows = window, other_windows
        self._is_split = False
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._kv_bytes_per_token = kv_bytes_per_token
        self._weight_bytes = weight_bytes
        self._default_blocks = default_blocks
        self._crossover_tokens = crossover_tokens
        self._block_size = 0
        self._num_blocks = self._num_host_blocks = 0
        # Prefixes are interned exactly, not by their hash: two slots hold the same node if and only if
        # they were computed from the same tokens.
        self._prefixes = [_Prefix(-1, 0, 0)]
        self._ids: dict[tuple[int, int], int] = {}
        self._tokens = [-1]  # by node: its last token
        self._compact_at = _MOST_UNREAD
        self._slots: list[int | None] = []  # the node whose last token's K/V the slot holds; None is poison

    def split_layers(self) -> None:
        """Keep each layer group's prefixes in slots of its own."""
        self._is_split = True

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        self._block_size = block_size
        self._num_blocks = self._default_blocks if num_blocks is None else num_blocks
        self._num_host_blocks = num_host_blocks
        self._slots = [None] * ((self._num_blocks + num_host_blocks) * block_size)

    def capacity(self) -> Capacity:
        return Capacity(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes_per_token=self._kv_bytes_per_token,
            weight_bytes=self._weight_bytes,
            max_model_len=self._max_model_len,
            vocab_size=self._vocab_size,
            crossover_tokens=self._crossover_tokens,
            window=self._window,
            other_windows=self._other_windows if self._is_split else (),
            num_host_blocks=self._num_host_blocks,
        )

    def run(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        if len(plan.groups) != len(self._other_windows) * self._is_split:
            raise WrongReadError(f"step {plan.step}: {1 + len(plan.groups)} layer groups, the model has others")
        if len(self._prefixes) > self._compact_at:
            self.compact()
        rows = len(plan.request_ids)
        bounds = [(plan.query_start_loc[r], plan.query_start_loc[r + 1]) for r in range(rows)]
        # As in attention, every row's K/V is written before any row is read.
        nodes = [node for r in range(rows) for node in self._write(plan, r, *bounds[r])]
        for r in range(rows):
            tables = [plan.block_tables[r], *(group.block_tables[r] for group in plan.groups)]
            for group, (table, window) in enumerate(zip(tables, (self._window, *self._other_windows), strict=False)):
                self._read_back(plan, r, nodes[bounds[r][0] : bounds[r][1]], table, window, group)
        result = StepResult([], 0.0)
        draws = zip(plan.logits_indices, plan.sampling, plan.uniforms, strict=True)
        for draw, (token, params, uniform) in enumerate(draws):
            logits = self._logits(self._prefixes[nodes[token]].digest)
            transform, proposal = plan.transforms.get(draw), plan.proposals.get(draw)
            if proposal is None:
                result.token_ids.append(sample(logits, params, uniform, transform))
            else:
                result.token_ids.append(draw_against(distribution(logits, params, transform), proposal, uniform))
            if draw in plan.logprobs:
                target = plan.targets.get(draw, result.token_ids[draw])
                result.logprobs[draw] = token_logprobs(logits, target, plan.logprobs[draw])
            if draw in plan.distributions:
                chances = dict(distribution(logits, params, transform))
                result.distributions[draw] = [chances.get(i, 0.0) for i in range(self._vocab_size)]
        if plan.wants_hidden:  # a token's is its prefix
            result.hidden = [self._prefixes[nodes[token]] for token in plan.logits_indices]
        result.elapsed_s = time.perf_counter() - started
        return result

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        size = self._block_size
        read = [self._slots[source * size : (source + 1) * size] for source, _ in pairs]
        for (_, target), content in zip(pairs, read, strict=True):
            self._slots[target * size : (target + 1) * size] = content

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        read = [self._slots[source] for source, _ in pairs]
        for (_, target), content in zip(pairs, read, strict=True):
            self._slots[target] = content

    def read_blocks(self, blocks: Sequence[int]) -> list[bytes]:
        """For each slot the tokens of the prefix that it was computed from: what is wrong here is wrong there."""
        size = self._block_size
        slots = [self._slots[block * size : (block + 1) * size] for block in blocks]
        return [json.dumps([node if node is None else self._tokens_of(node) for node in one]).encode() for one in slots]

    def write_blocks(self, contents: Sequence[tuple[int, bytes]]) -> None:
        for block, content in contents:
            for offset, tokens in enumerate(json.loads(content)):
                node = None if tokens is None else _EMPTY
                for token_id in tokens or ():
                    node = self._intern(node or _EMPTY, token_id)
                self._slots[block * self._block_size + offset] = node

    def close(self) -> None:
        self._slots = []

    def poison(self, blocks: Sequence[int]) -> None:
        """Make every later read of these blocks' slots raise, until they are written again."""
        for block in blocks:
            start = block * self._block_size
            self._slots[start : start + self._block_size] = [None] * self._block_size

    def next_id(
        self, prefix_ids: Sequence[int], params: SamplingParams, uniform: float, transform: Transform | None = None
    ) -> int:
        """The right next token after a prefix, without slots: what every run is compared with."""
        return sample(self.logits_after(prefix_ids), params, uniform, transform)

    def logits_after(self, prefix_ids: Sequence[int]) -> list[float]:
        """``[V]`` logits of the token after a prefix, without slots."""
        digest = 0
        for token_id in prefix_ids:
            digest = _extend(digest, token_id)
        return self._logits(digest)

    def _write(self, plan: StepPlan, row: int, start: int, end: int) -> list[int]:
        """Write the row's tokens after the prefix found in its last cached slot; returns a node for each."""
        node = _EMPTY
        if plan.positions[start] > 0:
            node = self._slot(plan, row, plan.positions[start] - 1, plan.block_tables[row], 0)
        parents = plan.trees.get(row, ())
        first = end - len(parents)  # of the tree
        nodes: list[int] = []
        for i in range(start, end):
            if i >= first:
                node = nodes[first - start + parents[i - first]]
            node = self._intern(node, plan.token_ids[i])
            if i >= first and self._prefixes[node].length != plan.positions[i] + 1:
                raise WrongReadError(
                    f"step {plan.step}: {plan.request_ids[row]} puts a token of its tree at position "
                    f"{plan.positions[i]} after {self._prefixes[node].length - 1} others"
                )
            for group, slots in enumerate([plan.slot_mapping, *(tables.slot_mapping for tables in plan.groups)]):
                self._slots[slots[i]] = node + group * _GROUP
            nodes.append(node)
        return nodes

    def _read_back(
        self, plan: StepPlan, row: int, nodes: list[int], table: Sequence[int], window: int | None, group: int
    ) -> None:
        """Attention's reads: the slots of all places must hold the prefixes that lead to the row's ``nodes``."""
        parents = plan.trees.get(row, ())
        for i, node in enumerate(nodes[len(nodes) - len(parents) :]):
            # A branch's own tokens; what lies before the tree is read once, below.
            place = plan.seq_lens[row] - len(parents) + i
            if self._slot(plan, row, place, table, group) != node:
                raise WrongReadError(
                    f"step {plan.step}: {plan.request_ids[row]} reads token {i} of its tree from place {place} and "
                    f"finds another"
                )
        node = nodes[len(nodes) - len(parents) - 1]
        first = 0 if window is None else max(0, plan.positions[plan.query_start_loc[row]] - window + 1)
        for position in range(plan.seq_lens[row] - len(parents) - 1, first - 1, -1):
            found = self._slot(plan, row, position, table, group)
            prefix = self._prefixes[node]
            if found != node or prefix.length != position + 1:
                raise WrongReadError(
                    f"step {plan.step}: {plan.request_ids[row]} reads position {position} and finds a prefix of "
                    f"{self._prefixes[found].length} tokens that is not its own"
                )
            node = prefix.parent

    def _slot(self, plan: StepPlan, row: int, position: int, table: Sequence[int], group: int) -> int:
        size = self._block_size
        if position // size >= len(table):
            raise WrongReadError(
                f"step {plan.step}: {plan.request_ids[row]} reads position {position}, its table has "
                f"{len(table)} blocks of {size}"
            )
        slot = table[position // size] * size + position % size
        node = self._slots[slot]
        if node is None:
            raise WrongReadError(
                f"step {plan.step}: {plan.request_ids[row]} reads position {position} from slot {slot}, which was "
                f"never written or has been freed"
            )
        if node // _GROUP != group:
            raise WrongReadError(
                f"step {plan.step}: layer group {group} of {plan.request_ids[row]} reads position {position} from "
                f"slot {slot}, which another group wrote"
            )
        return node - group * _GROUP

    def compact(self) -> None:
        """Forget the prefixes that no slot leads to, so that a long run needs no more memory than its slots do."""
        is_read = bytearray(len(self._prefixes))
        for node in self._slots:
            if node is not None:
                is_read[node % _GROUP] = 1
        is_read[_EMPTY] = 1
        for node in range(len(is_read) - 1, _EMPTY, -1):  # a parent's number is below its children's
            if is_read[node]:
                is_read[self._prefixes[node].parent] = 1
        kept = [node for node in range(len(is_read)) if is_read[node]]
        new = {node: i for i, node in enumerate(kept)}
        new[-1] = -1
        self._prefixes = [p._replace(parent=new[p.parent]) for p in map(self._prefixes.__getitem__, kept)]
        self._tokens = [self._tokens[node] for node in kept]
        self._ids = {(p.parent, self._tokens[i]): i for i, p in enumerate(self._prefixes) if i != _EMPTY}
        self._slots = [None if n is None else n - n % _GROUP + new[n % _GROUP] for n in self._slots]
        self._compact_at = 2 * len(kept) + _MOST_UNREAD

    def _tokens_of(self, node: int) -> list[int]:
        """The prefix of a node."""
        tokens = []
        while node != _EMPTY:
            tokens.append(self._tokens[node])
            node = self._prefixes[node].parent
        return tokens[::-1]

    def _intern(self, parent: int, token_id: int) -> int:
        node = self._ids.get((parent, token_id))
        if node is None:
            node = len(self._prefixes)
            before = self._prefixes[parent]
            self._prefixes.append(_Prefix(parent, before.length + 1, _extend(before.digest, token_id)))
            self._ids[parent, token_id] = node
            self._tokens.append(token_id)
        return node

    def _logits(self, digest: int) -> list[float]:
        """Noise in [0, 4) for each token, and 8 more for one of them: greedy and sampled runs both vary."""
        logits = [(_extend(digest, -1 - i) >> 11) * 2.0**-51 for i in range(self._vocab_size)]
        logits[digest % self._vocab_size] += 8.0
        return logits


def _extend(digest: int, token_id: int) -> int:
    """One more token under a 64-bit hash (the finalizer of splitmix64)."""
    x = (digest * 0x9E3779B97F4A7C15 + token_id + 1) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
