"""Layer groups: layers with different windows, each group with block tables of its own over one pool.

A block holds the K/V of its tokens in the layers of one group, so a group of windowed layers gives blocks back that
the layers which see everything go on holding. All groups' tables cover the same tokens. What is done to a request is
done in every group or in none, and a prefix is hit as far as every group can serve it: the whole of it where layers
see everything, what a window reaches where they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minillm.core.blocks import PoolError
from minillm.core.kv.block_keys import ExtraKey
from minillm.core.kv.events import BlockEvents
from minillm.core.kv.tables import Hit
from minillm.core.kv_manager import KVManager
from minillm.core.request import Request


class GroupedKV(KVManager):
    """The tables of group 0 as ``KVManager`` has them; those of the others are in ``others``."""

    def __init__(self, *sizes: int, other_windows: Sequence[int | None], **options: Any) -> None:
        """``other_windows``: of groups 1, 2, ...; everything else as for ``KVManager``."""
        super().__init__(*sizes, **options)
        self.others = [KVManager(*sizes, **{**options, "window": w, "beside": self}) for w in other_windows]

    def lookup(self, request: Request) -> Hit:
        """The longest hit that every group can serve."""
        limit = (request.num_known - 1) // self.block_size
        while True:
            hits = [one._lookup(request, limit) for one in self._sharing]
            shortest = min(len(hit.blocks) for hit in hits)
            if all(len(hit.blocks) == shortest for hit in hits):
                first = hits[0]
                return Hit(first.blocks, first.num_tokens, first.chain, first.num_gone, tuple(hits[1:]))
            limit = shortest

    def _needed(self, request: Request, hit: Hit) -> int:
        pairs = zip(self._sharing, (hit, *hit.others), strict=True)
        return sum(KVManager._needed(one, request, its) for one, its in pairs)

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """In all groups together."""
        return sum(KVManager.most_blocks(one, num_computed_tokens, num_tokens) for one in self._sharing)

    def num_held(self, request: Request) -> int:
        """In all groups together."""
        return sum(KVManager.num_held(one, request) for one in self._sharing)

    def _start(self, request: Request, hit: Hit) -> None:
        for one, its in zip(self._sharing, (hit, *hit.others), strict=True):
            KVManager._start(one, request, its)

    def fork(self, parent: Request, child: Request) -> None:
        """In every group."""
        for one in self._sharing:
            KVManager.fork(one, parent, child)

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """In every group, or in none."""
        wanted = [one._missing(request, num_tokens) for one in self._sharing]
        if sum(missing + is_shared for missing, is_shared in wanted) > self.pool.num_free:
            return False
        for one, (missing, is_shared) in zip(self._sharing, wanted, strict=True):
            one._fill(request, missing, is_shared)
        return True

    def awaits_copy(self, request: Request) -> bool:
        """In any group."""
        return any(KVManager.awaits_copy(one, request) for one in self._sharing)

    def commit(self, request: Request) -> None:
        """In every group."""
        for one in self._sharing:
            KVManager.commit(one, request)

    def rewind(self, request: Request, num_tokens: int) -> None:
        """In every group."""
        for one in self._sharing:
            KVManager.rewind(one, request, num_tokens)

    def release(self, request: Request) -> None:
        """In every group."""
        for one in self._sharing:
            KVManager.release(one, request)

    def swap_out(self, request: Request) -> bool:
        """Every group's table, or none."""
        done: list[tuple[KVManager, list[int], list[tuple[int, int]]]] = []
        for one in self._sharing:
            stored = one._store(request)
            if stored is None:
                for _, hosts, _ in done:
                    self.host.release(hosts)
                return False
            done.append((one, *stored))
        for one, hosts, copies in done:
            one._leave(request, hosts, copies)
        return True

    def swap_in(self, request: Request) -> bool:
        """Every group's table, or none."""
        found = [one._returning(request) for one in self._sharing]
        if sum(needed for _, needed in found) > self.pool.num_free:
            return False
        for stays, _ in found:
            self._hold(stays)
        for one, (stays, _) in zip(self._sharing, found, strict=True):
            one._return(request, stays)
        return True

    def swapped_by(self, copies: Sequence[tuple[int, int]]) -> list[str]:
        """In any group, each once."""
        found = [request_id for one in self._sharing for request_id in KVManager.swapped_by(one, copies)]
        return list(dict.fromkeys(found))

    def events(self) -> BlockEvents:
        """Refused: a block of one group says nothing of what a request would hit."""
        raise PoolError(_refusal(self, "events of cached blocks"))

    def find(self, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> list[int]:
        """Refused: blocks of one group are no one's whole K/V."""
        raise PoolError(_refusal(self, "a transfer of blocks"))


def _refusal(kv: GroupedKV, what: str) -> str:
    return (
        f"{what} with {1 + len(kv.others)} layer groups, one is supported: "
        "set free_behind_window=False, then all layers share their blocks"
    )
