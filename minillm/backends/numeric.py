"""What the numeric backends share: the K/V pool, the capacity, and a step from plan to ids.

A library adds how its arrays are made (`NumpyBackend`, `TorchBackend`) and its operators.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.backends.inputs import slot_column, stale_slots, token_columns
from minillm.backends.memory import available_host_bytes, blocks_for, host_kv_budget_bytes
from minillm.core.backend import Capacity
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.costs.flops import attention_flops, linear_flops
from minillm.loaders.tensors import Float32
from minillm.models.attention import Cache
from minillm.models.cache_spec import CacheSpec
from minillm.models.decoder import Decoder, Look, build_parameters
from minillm.models.load import LoadedModel
from minillm.models.reader import Reader
from minillm.models.rope import angles, inverse_frequencies
from minillm.models.spec import LayerGroup, ModelSpec
from minillm.ops.base import Array, AttentionMetadata, Batch, Ops
from minillm.ops.paging import Reads, reads_of

_FIRST_ROTATIONS = 512  # positions of the first table of cosines and sines


class NumericBackend(ABC):
    """A decoder over a pool of K/V blocks: ``Backend`` but for the arrays, which a subclass makes.

    ``max_model_len`` shortens what the model allows. With ``debug_poison``, K/V slots that hold
    nothing of their block's present owner are NaN, so a wrong read cannot stay unseen.
    ``available_bytes`` stands for the memory at hand when ``load`` picks the number of blocks.
    """

    def __init__(
        self, model: LoadedModel, ops: Ops, max_model_len: int | None, debug_poison: bool, available_bytes: int | None
    ) -> None:
        self.model, self.spec = model, model.spec
        self.ops = ops
        self._max_model_len = model.max_model_len(max_model_len)
        self._poison, self._available_bytes = debug_poison, available_bytes
        self._decoder: Decoder | None = None
        # Keys and values of each layer; of each place in a group, where layers are split into groups.
        self._caches: list[Cache] = []
        self._groups = [LayerGroup(self.spec.longest_window, tuple(range(self.spec.num_layers)))]
        self._host_caches: list[Cache] = []
        self._block_size = self._num_blocks = self._num_host_blocks = 0
        self._places: list[tuple[int, int]] = []  # for each layer its group, and its place in the group
        self._rotations: list[tuple[Array, ...]] = []  # for each rope (cos, sin) [positions, 1, dim / 2]
        self._num_rotated = 0  # positions in these tables

    @property
    @abstractmethod
    def dtype_name(self) -> str:
        """Of weights and K/V."""

    @property
    @abstractmethod
    def device_name(self) -> str:
        """Where weights and K/V are."""

    @property
    @abstractmethod
    def _itemsize(self) -> int:
        """Bytes of a weight and of a value of K or V."""

    @abstractmethod
    def matrix(self, parts: Sequence[Float32]) -> Array:
        """Rows joined, in the backend's dtype."""

    @abstractmethod
    def vector(self, values: NDArray[np.floating]) -> Array:
        """In the backend's dtype, or in float32 where that is wider."""

    @abstractmethod
    def array(self, values: NDArray[Any]) -> Array:
        """An array of this library, on the backend's device, of the same dtype."""

    @abstractmethod
    def _host(self, values: Array) -> NDArray[Any]:
        """The same as an array of NumPy."""

    @abstractmethod
    def _reads(self, reads: Reads) -> Reads:
        """The same reads with arrays of this library."""

    @abstractmethod
    def _zeros(self, shape: tuple[int, ...]) -> Array:
        """A layer's keys or values, in pages that cost nothing until they are written where that can be had."""

    @abstractmethod
    def _host_zeros(self, shape: tuple[int, ...]) -> Array:
        """The same in host memory, for blocks that are swapped out."""

    @abstractmethod
    def _to_bytes(self, values: Array) -> bytes:
        """Values of a cache, as they lie in memory."""

    @abstractmethod
    def _from_bytes(self, data: bytes, shape: tuple[int, ...]) -> Array:
        """What ``_to_bytes`` returned, where the cache is."""

    @abstractmethod
    def _beside(self, values: Array, cache: Array) -> Array:
        """``values`` as an array of this library, where ``cache`` is."""

    def _budget_bytes(self, one_sequence_bytes: int) -> int:
        """Memory to spend on K/V, on the host."""
        available = available_host_bytes() if self._available_bytes is None else self._available_bytes
        return host_kv_budget_bytes(available, one_sequence_bytes)

    @property
    def _kv_bytes_per_token(self) -> int:
        """Of all layers that one block serves."""
        return self.spec.kv_elements_per_token * self._itemsize * self._layers_in_block // self.spec.num_layers

    @property
    def _layers_in_block(self) -> int:
        return max(len(group.layers) for group in self._groups)

    def split_layers(self) -> None:
        """From the next ``load`` on, layers with different windows have blocks of their own."""
        if len(set(self.spec.windows)) > 1:
            self._groups = self.spec.layer_groups()

    @property
    def _num_slots(self) -> int:
        return self._num_blocks * self._block_size

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        """Read the weights and allocate ``num_blocks`` blocks, or as many as the memory takes, and the host's."""
        if self._decoder is None:
            reader = Reader(self.model.weights.read, self.matrix, self.vector, self.spec.norm_offset)
            self._decoder = Decoder(self.spec, build_parameters(self.spec, reader), self.ops)
        if num_blocks is None:
            token_bytes = self._kv_bytes_per_token * len(self._groups)  # each group's block, as if none were left
            num_blocks = len(self._groups) * blocks_for(
                budget_bytes=self._budget_bytes((self._max_model_len + 2 * block_size) * token_bytes),
                block_size=block_size,
                bytes_per_token=token_bytes,
                max_model_len=self._max_model_len,
            )
        self._block_size, self._num_blocks, self._num_host_blocks = block_size, num_blocks, num_host_blocks
        of_layer = {layer: (g, i) for g, group in enumerate(self._groups) for i, layer in enumerate(group.layers)}
        self._places = [of_layer[layer] for layer in range(self.spec.num_layers)]
        self._rotate_up_to(min(_FIRST_ROTATIONS, self._max_model_len))
        self._caches = [self.new_cache(spec, self._num_slots) for spec in self._cache_specs]
        self._host_caches = [
            tuple(self._host_zeros((num_host_blocks * block_size, *row)) for row in spec.rows)
            for spec in self._cache_specs
        ]
        if self._poison:
            self.poison_blocks(range(num_blocks))

    @property
    def _cache_specs(self) -> list[CacheSpec]:
        """What each place of a group keeps: the layers of all groups are alike."""
        return [self.spec.layers[layer].mixer.cache for layer in self._groups[0].layers]

    def new_cache(self, spec: CacheSpec, num_slots: int) -> Cache:
        """The arrays of one layer."""
        # One slot more: padding of gathered keys reads it, nothing writes it.
        return tuple(self._zeros((num_slots + 1, *row)) for row in spec.rows)

    def capacity(self) -> Capacity:
        """Sizes after ``load``."""
        return Capacity(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes_per_token=self._kv_bytes_per_token,
            weight_bytes=self.model.weights.parameters * self._itemsize,
            max_model_len=self._max_model_len,
            vocab_size=self.spec.vocab_size,
            crossover_tokens=_crossover_tokens(self.spec),
            window=self._groups[0].window,
            other_windows=tuple(group.window for group in self._groups[1:]),
            num_host_blocks=self._num_host_blocks,
        )

    def run(self, plan: StepPlan) -> StepResult:
        """Write K/V of the plan's tokens, attend, draw."""
        started = time.perf_counter()
        result = StepResult([], 0.0)
        if plan.token_ids:
            hidden = self._hidden_states(plan)
            self.draw(hidden, plan, result)
            if result.faults:
                result.faults = self._origins(plan, list(result.faults))
                if self._poison:  # then NaN is most likely what was put there to be found
                    raise ValueError(f"step {plan.step}: {next(iter(result.faults.values()))}")
            if plan.wants_hidden:
                result.hidden = hidden
        result.elapsed_s = time.perf_counter() - started
        return result

    def draw(self, hidden: Array, plan: StepPlan, result: StepResult) -> None:
        """Make the plan's draws from ``hidden [S, hidden]``, and put what is wanted of them into ``result``."""
        logits = self.decoder.logits(hidden)
        try:
            result.token_ids = self.ops.sample(logits, plan.sampling, plan.uniforms, plan.transforms)
        except ValueError:  # a row holds NaN or +inf, or nothing that may be drawn
            logits, result.faults = self._without_faults(logits)
            if not result.faults:
                raise
            result.token_ids = self.ops.sample(logits, plan.sampling, plan.uniforms, plan.transforms)
        if plan.proposals:
            rows = list(plan.proposals)
            uniforms = [plan.uniforms[row] for row in rows]
            drawn = self.ops.draw_against(
                self._distributions(logits, plan, rows), list(plan.proposals.values()), uniforms
            )
            for row, token_id in zip(rows, drawn, strict=True):
                result.token_ids[row] = token_id
        result.logprobs = self._logprobs(logits, plan, result.token_ids)
        if plan.distributions:
            rows = list(plan.distributions)
            result.distributions = dict(zip(rows, self._host(self._distributions(logits, plan, rows)), strict=True))

    def _without_faults(self, logits: Array) -> tuple[Array, dict[int, str]]:
        """The logits with zeros in the rows that are no numbers, and what is wrong with these."""
        values = self._host(logits)
        is_sound = np.less(values, np.inf)  # NaN is below nothing, and -inf is a token that cannot be drawn
        broken: NDArray[Any] = ~is_sound.all(axis=1)
        rows = np.flatnonzero(broken).tolist()
        sound = self.array(np.where(broken[:, None], 0, values).astype(values.dtype))
        return sound, dict.fromkeys(rows, "logits hold NaN or +inf")

    def _origins(self, plan: StepPlan, draws: Sequence[int]) -> dict[int, str]:
        """Where the numbers of broken draws went wrong: the step is run again and looked at after each layer.

        It writes the same K/V to the same slots, so that nothing changes by it.
        """
        sampled = np.asarray(plan.logits_indices)
        rows = np.searchsorted(plan.query_start_loc, sampled[list(draws)], side="right") - 1
        found: dict[int, str] = {}

        def look(where: str, hidden: Array) -> None:
            broken: NDArray[Any] = ~np.all(np.isfinite(self._host(hidden)), axis=1)
            tokens = np.arange(len(broken)) if len(broken) == plan.query_start_loc[-1] else sampled
            for draw, row in zip(draws, rows, strict=True):
                own = (plan.query_start_loc[row] <= tokens) & (tokens < plan.query_start_loc[row + 1]) & broken
                if draw not in found and own.any():
                    token = tokens[own][0]
                    found[draw] = f"{where}, of token {plan.token_ids[token]} at position {plan.positions[token]}"

        self._hidden_states(plan, look)
        return {
            draw: f"logits hold NaN or +inf, first seen behind {found.get(draw, 'the head')}: the model's weights are "
            "damaged, or its numbers are too large for its dtype"
            for draw in draws
        }

    def _distributions(self, logits: Array, plan: StepPlan, draws: Sequence[int]) -> Array:
        """``[n, V]``, what the given draws are made from."""
        transforms = {i: plan.transforms[draw] for i, draw in enumerate(draws) if draw in plan.transforms}
        rows = self.ops.take_rows(logits, self.array(np.asarray(draws, dtype=np.int64)))
        return self.ops.distributions(rows, [plan.sampling[draw] for draw in draws], transforms)

    def _logprobs(self, logits: Array, plan: StepPlan, token_ids: list[int]) -> dict[int, TokenLogprobs]:
        """Of the draws that want them, for the drawn token or the one the plan names."""
        draws = list(plan.logprobs)
        if not draws:
            return {}
        targets = [plan.targets.get(draw, token_ids[draw]) for draw in draws]
        found = self.ops.logprobs(logits, draws, targets, list(plan.logprobs.values()))
        return dict(zip(draws, found, strict=True))

    @property
    def decoder(self) -> Decoder:
        """The model, once it is loaded."""
        if self._decoder is None:
            raise RuntimeError("the backend has no KV memory yet: call load first")
        return self._decoder

    def _forward(self, plan: StepPlan) -> Array:
        """``[S, V]``, the logits of the plan's ``logits_indices``."""
        return self.decoder.logits(self._hidden_states(plan))

    def _hidden_states(self, plan: StepPlan, look: Look | None = None) -> Array:
        """``[S, hidden]`` of the plan's ``logits_indices``, from which their draws are made."""
        decoder = self.decoder
        if len(plan.groups) != len(self._groups) - 1:
            raise ValueError(
                f"step {plan.step}: tables of {1 + len(plan.groups)} layer groups, the K/V is in {len(self._groups)}"
            )
        batch = self.batch_of(plan)
        tables = [plan, *(replace(plan, slot_mapping=g.slot_mapping, block_tables=g.block_tables) for g in plan.groups)]
        metadata = [self.metadata_of(table, self._num_slots) for table in tables]
        if self._poison:
            for table in tables:
                self._poison_slots(stale_slots(np.asarray(table.slot_mapping, dtype=np.int64), self._block_size))
        return decoder.hidden_states(
            batch,
            [metadata[group] for group, _ in self._places],
            [self._caches[place] for _, place in self._places],
            look,
        )

    def batch_of(self, plan: StepPlan) -> Batch:
        """The columns of the plan that all layers share, as arrays of this library."""
        vocab_size, max_model_len = self.spec.vocab_size, self._max_model_len
        token_ids, positions, logits_indices = token_columns(plan, vocab_size=vocab_size, max_model_len=max_model_len)
        return Batch(self.array(token_ids), self.array(logits_indices), self._turned(positions))

    def metadata_of(self, plan: StepPlan, num_slots: int) -> AttentionMetadata:
        """Where the plan's tokens are written and read. Padding of gathered keys reads slot ``num_slots``."""
        slots = slot_column(plan, num_slots=num_slots)
        return AttentionMetadata(self.array(slots), self._reads(reads_of(plan, num_slots)))

    def _turned(self, positions: NDArray[np.int64]) -> list[tuple[Array, Array]]:
        """Cosines and sines of the positions, from tables that double when a later position comes."""
        last = int(positions.max(initial=0))
        if last >= self._num_rotated:
            self._rotate_up_to(min(1 << last.bit_length(), self._max_model_len))
        where = self.array(positions)
        return [(cos[where], sin[where]) for cos, sin in self._rotations]

    def _rotate_up_to(self, num_positions: int) -> None:
        """Make the tables of cosines and sines of the first positions, for each rope of the model."""
        self._rotations = []
        for rope in self.spec.ropes:
            turn = angles(inverse_frequencies(rope), np.arange(num_positions))[:, None, :]
            self._rotations.append(tuple(self.vector(part * rope.amplitude) for part in (np.cos(turn), np.sin(turn))))
        self._num_rotated = num_positions

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), within the device and to and from the host.

        All sources are read before anything is written.
        """
        by_way: dict[tuple[bool, bool], list[tuple[int, int]]] = {}  # (from the host, to the host)
        for source, target in pairs:
            by_way.setdefault((source >= self._num_blocks, target >= self._num_blocks), []).append((source, target))
        moves = [
            (way, self._slots_of([source for source, _ in chosen]), self._slots_of([target for _, target in chosen]))
            for way, chosen in by_way.items()
        ]
        for caches, host_caches in zip(self._caches, self._host_caches, strict=True):
            for sides in zip(caches, host_caches, strict=True):  # as the keys of a layer, then its values
                read = [sides[way[0]][self._beside(sources, sides[way[0]])] for way, sources, _ in moves]
                for (way, _, targets), content in zip(moves, read, strict=True):
                    side = sides[way[1]]
                    side[self._beside(targets, side)] = self._beside(content, side)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what is kept of single tokens (source, target); all sources are read before anything is written."""
        if not pairs:
            return
        sources, targets = (self.array(slots) for slots in np.asarray(pairs, dtype=np.int64).T.copy())
        for array in self._arrays():
            array[targets] = array[sources]

    def read_blocks(self, blocks: Sequence[int]) -> list[bytes]:
        """For each block what layer after layer keeps, array by array, as it lies in memory."""
        slots = self.array(self._slots_of(blocks))
        sides = [self._to_bytes(array[slots]) for array in self._arrays()]
        sizes = [len(side) // max(1, len(blocks)) for side in sides]  # bytes of a block in each array
        return [
            b"".join(side[i * size : (i + 1) * size] for side, size in zip(sides, sizes, strict=True))
            for i in range(len(blocks))
        ]

    def write_blocks(self, contents: Sequence[tuple[int, bytes]]) -> None:
        """``ValueError`` for a content of another size: it is of another model, dtype or block size."""
        shapes = [(self._block_size, *row) for spec in self._cache_specs for row in spec.rows]
        sizes = [math.prod(shape) * self._itemsize for shape in shapes]
        for block, content in contents:
            if len(content) != sum(sizes):
                raise ValueError(
                    f"block of {len(content):,} bytes, one of this model has {sum(sizes):,}: "
                    "take it to an engine of the same model, dtype and block size"
                )
            slots, start = self.array(self._slots_of([block])), 0
            for array, shape, size in zip(self._arrays(), shapes, sizes, strict=True):
                array[slots] = self._from_bytes(content[start : start + size], shape)
                start += size

    def poison_blocks(self, blocks: Sequence[int]) -> None:
        """Debugging: overwrite freed blocks with NaN."""
        self._poison_slots(self._slots_of(blocks))

    def close(self) -> None:
        """Drop weights and K/V; ``load`` makes them again."""
        self._decoder, self._caches, self._host_caches = None, [], []

    def _slots_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Slots of blocks that are all on the device, or all on the host, in the arrays of their side."""
        ids = np.asarray(blocks, dtype=np.int64)
        ids = np.where(ids < self._num_blocks, ids, ids - self._num_blocks)
        return (ids[:, None] * self._block_size + np.arange(self._block_size)).ravel()

    def _poison_slots(self, slots: NDArray[np.int64]) -> None:
        where = self.array(slots)
        for array in self._arrays():
            array[where] = float("nan")

    def _arrays(self) -> Iterator[Array]:
        """All arrays of the device's caches, layer by layer."""
        return (array for cache in self._caches for array in cache)


def _crossover_tokens(spec: ModelSpec) -> float:
    """Context at which a token's attention takes as many FLOPs as its matrices; the head runs for few tokens."""
    full = [layer.mixer for layer in spec.layers if layer.mixer.cache.window is None]
    if not full:
        return math.inf
    matrices = sum(part.matrix_elements(spec.hidden) for layer in spec.layers for part in (layer.mixer, layer.ffn))
    return float(linear_flops(matrices, 1) / sum(attention_flops(1, m.heads, m.head_dim) for m in full))
