"""Every operator: plain loops in float64, NumPy in float64 and float32, torch in float64, float32 and bfloat16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minillm.backends.plans import Chunk, plan_of
from minillm.core.plan import StepPlan
from minillm.models.rope import angles, inverse_frequencies
from minillm.models.spec import Rope
from minillm.ops import numpy_ops, torch_ops
from minillm.ops.base import AttentionMetadata, AttentionSpec
from minillm.ops.latent import expands
from minillm.ops.linear import Linear
from minillm.ops.paging import reads_of
from minillm.ops.routing import Routing

Array = NDArray[Any]
CPU = torch.device("cpu")

# What runs an operator, and how far it may be from float64, relative to the largest value.
RUNNERS = {
    "numpy-float64": (numpy_ops, np.float64, 1e-12),
    "numpy-float32": (numpy_ops, np.float32, 1e-5),
    "torch-float64": (torch_ops, torch.float64, 1e-12),
    "torch-float32": (torch_ops, torch.float32, 1e-5),
    "torch-bfloat16": (torch_ops, torch.bfloat16, 2e-2),
}
EVERY = pytest.mark.parametrize("runner", RUNNERS)


class Runner:
    """Converts float64 arrays for one library and precision, and back."""

    def __init__(self, name: str) -> None:
        self.ops, self.dtype, self.tolerance = RUNNERS[name]
        self.is_torch = self.ops is torch_ops

    def put(self, x: Array) -> Any:
        if self.is_torch:
            values = torch.from_numpy(x.copy())
            return values if x.dtype.kind in "iu" else values.to(self.dtype)
        return x.copy() if x.dtype.kind in "iu" else x.astype(self.dtype)

    def turn(self, x: Array) -> Any:
        """Cosines, sines and norm weights stay float32 where the rest is bfloat16."""
        if self.is_torch:
            return torch.from_numpy(x.copy()).to(torch.promote_types(self.dtype, torch.float32))
        return self.put(x)

    def get(self, x: Any) -> Array:
        return x.to(torch.float64).numpy() if self.is_torch else np.asarray(x, np.float64)

    def check(self, found: Any, wanted: Array) -> None:
        found = self.get(found)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= self.tolerance * max(1e-9, np.abs(wanted).max())

    def reads(self, plan: StepPlan, padding_slot: int) -> Any:
        reads = reads_of(plan, padding_slot)
        return torch_ops.to_device(reads, CPU) if self.is_torch else reads


def normal(*shape: int, seed: int = 0) -> Array:
    # bfloat16 values, so that no runner starts with an error of its own.
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(torch.bfloat16).to(torch.float64).numpy()


@EVERY
@pytest.mark.parametrize("width", [1, 7, 64])
def test_rms_norm(runner: str, width: int) -> None:
    run = Runner(runner)
    x, residual, weight = normal(3, width), normal(3, width, seed=1), normal(width, seed=2)

    def wanted(v: Array) -> Array:
        scales = [1 / math.sqrt(sum(a * a for a in row) / width + 1e-5) for row in v]
        return np.array(
            [[e * s * w for e, w in zip(row, weight, strict=True)] for row, s in zip(v, scales, strict=True)]
        )

    run.check(run.ops.rms_norm(run.put(x), run.turn(weight), 1e-5), wanted(x))
    normed, total = run.ops.add_rms_norm(run.put(x), run.put(residual), run.turn(weight), 1e-5)
    run.check(total, x + residual)
    run.check(normed, wanted(x + residual))


@EVERY
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_linear_and_embed(runner: str, tokens: int) -> None:
    run = Runner(runner)
    x, weight, bias = normal(tokens, 13), normal(17, 13, seed=1), normal(17, seed=2)
    wanted = np.array([[sum(a * b for a, b in zip(row, w, strict=True)) for w in weight] for row in x])
    run.check(run.ops.linear(run.put(x), Linear(run.put(weight))), wanted)
    run.check(run.ops.linear(run.put(x), Linear(run.put(weight), run.put(bias))), wanted + bias)
    ids = np.array([16, 0, 3])
    run.check(run.ops.embed(run.put(weight), run.put(ids)), weight[ids])
    run.check(run.ops.take_rows(run.put(weight), run.put(ids)), weight[ids])


@EVERY
def test_swiglu_and_soft_cap(runner: str) -> None:
    run = Runner(runner)
    x = np.concatenate([normal(2, 6) * 3, [[-200.0, 200.0, 0.0, 1.0, 1.0, 1.0]]])
    gate, up = x[:, :3], x[:, 3:]
    silu = np.array([[g / (1 + math.exp(-g)) if g > -700 else 0.0 for g in row] for row in gate])
    gelu = np.array(
        [[0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) for g in row] for row in gate]
    )
    run.check(run.ops.swiglu(run.put(x), "silu"), silu * up)
    run.check(run.ops.swiglu(run.put(x), "gelu_tanh"), gelu * up)
    run.check(run.ops.silu(run.put(gate)), silu)
    run.check(run.ops.stack([run.put(row) for row in x]), x)
    run.check(run.ops.soft_cap(run.put(x), 30.0), 30 * np.tanh(x / 30))


@EVERY
@pytest.mark.parametrize(("head_dim", "dim"), [(2, 2), (6, 6), (10, 10), (10, 4)])
def test_rope_rotates_halves_and_stores(runner: str, head_dim: int, dim: int) -> None:
    run = Runner(runner)
    q, k, v = normal(3, 4, head_dim), normal(3, 2, head_dim, seed=1), normal(3, 2, head_dim, seed=2)
    positions, slots = np.array([0, 5, 41]), np.array([7, 2, 5])
    turn = angles(inverse_frequencies(Rope(dim, theta=100.0)), positions)[:, None, :]
    cos, sin = run.turn(np.cos(turn)), run.turn(np.sin(turn))
    k_cache, v_cache = run.put(np.zeros((9, 2, head_dim))), run.put(np.zeros((9, 2, head_dim)))
    qk = run.put(np.concatenate((q, k), axis=1))
    rotated = run.ops.rope_and_store_kv(qk, run.put(v), cos, sin, run.put(slots), k_cache, v_cache)

    def rotate(x: Array) -> Array:
        half = dim // 2
        out = x.copy()
        for t, position in enumerate(positions):
            for i in range(half):  # the pair (i, i + half) is a complex number, turned
                turned = (x[t, :, i] + 1j * x[t, :, i + half]) * np.exp(1j * position * 100.0 ** (-2 * i / dim))
                out[t, :, i], out[t, :, i + half] = turned.real, turned.imag
        return out

    run.check(rotated, rotate(q))
    wanted_k, wanted_v = np.zeros((9, 2, head_dim)), np.zeros((9, 2, head_dim))
    wanted_k[slots], wanted_v[slots] = rotate(k), v
    run.check(k_cache, wanted_k)
    run.check(v_cache, wanted_v)


@EVERY
@pytest.mark.parametrize(
    "routing",
    [Routing(5, 2), Routing(4, 4, renormalize=True), Routing(6, 3, scale=2.5, groups=3, top_groups=2), Routing(1, 1)],
    ids=str,
)
def test_a_token_visits_the_experts_with_the_highest_scores(runner: str, routing: Routing) -> None:
    run = Runner(runner)
    logits = np.round(normal(7, routing.count), 1)
    logits[0] = 0.5  # all are equal: those with the lowest numbers are chosen
    chosen, shares = run.ops.route(run.put(logits), routing, None)
    wanted_shares = []
    for t, row in enumerate(logits):
        scores = np.exp(row) / np.exp(row).sum()
        size = routing.count // routing.groups
        best = sorted(range(routing.groups), key=lambda g: -scores[g * size : (g + 1) * size].max())
        open_experts = [e for e in range(routing.count) if e // size in best[: routing.top_groups]]
        wanted = sorted(open_experts, key=lambda e: -scores[e])[: routing.per_token]
        assert np.asarray(chosen[t]).tolist() == wanted
        total = scores[wanted].sum() if routing.renormalize else 1
        wanted_shares.append(scores[wanted] / total * routing.scale)
    run.check(shares, np.array(wanted_shares))


@EVERY
def test_experts_are_summed_by_their_shares(runner: str) -> None:
    run = Runner(runner)
    x, gate_up, down = normal(5, 6), normal(4, 2 * 3, 6, seed=1), normal(4, 6, 3, seed=2)
    chosen, shares = np.array([[0, 3], [3, 1], [1, 0], [3, 0], [0, 1]]), normal(5, 2, seed=3)  # nobody visits expert 2
    inner = np.einsum("th,eih->tei", x, gate_up)
    gate, up = inner[..., :3], inner[..., 3:]
    every = np.einsum("tei,ehi->teh", gate / (1 + np.exp(-gate)) * up, down)  # what each expert says of each token
    wanted = sum(shares[:, j, None] * every[np.arange(5), chosen[:, j]] for j in range(2))
    weights = [[Linear(run.put(w)) for w in ws] for ws in (gate_up, down)]
    run.check(run.ops.experts(run.put(x), run.put(chosen), run.put(shares), *weights, "silu"), wanted)


def naive_attention(q: Array, k: Array, v: Array, plan: StepPlan, spec: AttentionSpec) -> Array:
    """One query at a time, one head at a time, one slot at a time."""
    out = np.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for r in range(len(plan.seq_lens)):
        for t in range(plan.query_start_loc[r], plan.query_start_loc[r + 1]):
            position = plan.positions[t]
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            slots = [
                plan.block_tables[r][p // plan.block_size] * plan.block_size + p % plan.block_size
                for p in range(first, position + 1)
            ]
            for h in range(q.shape[1]):
                scores = np.array([q[t, h] @ k[s, h // group] for s in slots]) * spec.scale
                if spec.cap is not None:
                    scores = spec.cap * np.tanh(scores / spec.cap)
                weights = np.exp(scores - scores.max())
                out[t, h] = (weights / weights.sum()) @ np.array([v[s, h // group] for s in slots])
    return out.reshape(len(q), -1)


def mixed_plan(block_size: int, seed: int) -> StepPlan:
    """Two decodes, a chunk in the middle of a prompt, a whole prompt and a first token, blocks scattered."""
    free = list(np.random.default_rng(seed).permutation(np.arange(1, 200)))

    def table(tokens: int) -> list[int]:
        return [int(free.pop()) for _ in range(-(-tokens // block_size))]

    lengths = [(12, 11), (23, 16), (1, 0), (8, 0), (30, 29)]
    return plan_of([Chunk(list(range(n)), table(n), done) for n, done in lengths], block_size)


ATTENTIONS = {
    "plain": AttentionSpec(0.3),
    "window": AttentionSpec(0.3, window=5),
    "window of 1": AttentionSpec(0.3, window=1),
    "wide window": AttentionSpec(0.3, window=1000),
    "cap": AttentionSpec(0.9, cap=2.0),
    "cap and window": AttentionSpec(0.9, cap=2.0, window=6),
}


def check_attention(run: Runner, plan: StepPlan, heads: int, kv_heads: int, head_dim: int, spec: AttentionSpec) -> None:
    padding = 200 * plan.block_size
    slots = padding + 1
    q = normal(len(plan.token_ids), heads, head_dim)
    k, v = normal(slots, kv_heads, head_dim, seed=1), normal(slots, kv_heads, head_dim, seed=2)
    wanted = naive_attention(q, k, v, plan, spec)
    # Whatever no query may read is NaN: one wrong read, even with weight 0, spoils the output.
    readable = {padding}
    for r, context in enumerate(plan.seq_lens):
        readable |= {
            plan.block_tables[r][p // plan.block_size] * plan.block_size + p % plan.block_size for p in range(context)
        }
    unread = np.setdiff1d(np.arange(slots), list(readable))
    k[unread] = v[unread] = np.nan
    k[padding] = v[padding] = 0
    read = AttentionMetadata(None, run.reads(plan, padding))
    run.check(run.ops.attention(run.put(q), run.put(k), run.put(v), read, spec), wanted)


@EVERY
@pytest.mark.parametrize("spec", ATTENTIONS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_attention_of_a_mixed_batch(runner: str, spec: str, block_size: int) -> None:
    check_attention(Runner(runner), mixed_plan(block_size, 0), 6, 2, 10, ATTENTIONS[spec])


@EVERY
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 2), (4, 4, 8), (9, 3, 6), (8, 1, 20), (5, 5, 14)])
def test_attention_of_many_shapes(runner: str, heads: int, kv_heads: int, head_dim: int) -> None:
    for spec in ("plain", "window"):
        check_attention(Runner(runner), mixed_plan(3, 1), heads, kv_heads, head_dim, ATTENTIONS[spec])


@EVERY
def test_attention_of_decodes_alone(runner: str) -> None:
    plan = plan_of(
        [Chunk(list(range(n)), list(range(9 * i + 1, 9 * i + 9)), n - 1) for i, n in enumerate((5, 20, 1))], 3
    )
    for spec in ATTENTIONS.values():
        check_attention(Runner(runner), plan, 4, 2, 6, spec)


@EVERY
def test_a_chunk_longer_than_a_tile(runner: str) -> None:
    """NumPy scores 128 queries at a time; the chunk is neither shorter nor a multiple."""
    plan = plan_of([Chunk(list(range(300)), list(range(1, 40)), 10), Chunk([1, 2], [50])], 8)
    for spec in (AttentionSpec(0.3), AttentionSpec(0.3, window=40)):
        check_attention(Runner(runner), plan, 2, 1, 4, spec)


@EVERY
@pytest.mark.parametrize(
    ("rank", "makes_keys"), [(3, False), (40, True)], ids=["latent vectors as they are", "keys and values of them"]
)
def test_latent_attention_is_that_of_the_keys_and_values_it_stands_for(
    runner: str, rank: int, makes_keys: bool
) -> None:
    """Decodes, a few queries together, and two chunks; the way that each chunk takes is the one named."""
    run = Runner(runner)
    heads, nope, turned, value = 3, 4, 2, 5
    chunks = [Chunk(list(range(60)), list(range(1, 21)), 20), Chunk(list(range(30)), list(range(40, 50)), 0)]
    plan = plan_of([*chunks, Chunk([7] * 9, [51, 52, 53], 8), Chunk([7] * 6, [61, 62], 3)], 3)
    for chunk in chunks:
        queries = len(chunk.tokens) - chunk.computed
        assert expands(queries, len(chunk.tokens), (heads, nope, rank), value, turned) == makes_keys
    slots = 200 * 3 + 1
    q, cache = normal(len(plan.token_ids), heads, nope + turned), normal(slots, 1, rank + turned, seed=1)
    key_up, value_up = normal(heads, nope, rank, seed=2) / rank, normal(heads, value, rank, seed=3) / rank
    keys = np.concatenate(
        (np.einsum("sr,hnr->shn", cache[:, 0, :rank], key_up), cache[..., rank:].repeat(heads, 1)), axis=-1
    )
    values = np.einsum("sr,hvr->shv", cache[:, 0, :rank], value_up)
    # The plain loops want queries and values of one size; what is added of the values is zeros.
    wide = np.concatenate((values, np.zeros((slots, heads, nope + turned - value))), axis=-1)
    spec = AttentionSpec(0.3)
    wanted = naive_attention(q, keys, wide, plan, spec).reshape(len(q), heads, -1)[..., :value].reshape(len(q), -1)
    given = [run.put(x) for x in (q, cache, key_up, value_up)]
    run.check(run.ops.latent_attention(*given, AttentionMetadata(None, run.reads(plan, slots - 1)), spec), wanted)


def test_without_a_blas_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser's NumPy multiplies by einsum: the same operators, the other branch."""
    monkeypatch.setattr(numpy_ops, "_HAS_BLAS", False)
    run = Runner("numpy-float32")
    x, weight = normal(3, 13), normal(17, 13, seed=1)
    run.check(numpy_ops.linear(run.put(x), Linear(run.put(weight))), x @ weight.T)
    check_attention(run, mixed_plan(3, 0), 6, 2, 10, ATTENTIONS["window"])
