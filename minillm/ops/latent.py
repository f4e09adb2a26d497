"""Latent attention: whether a chunk reads the latent vectors as they are, or keys and values made of them."""

from __future__ import annotations


def expands(queries: int, context: int, key_up: tuple[int, ...], value_dim: int, rope_dim: int) -> bool:
    """Whether it takes fewer FLOPs to make a head's keys and values for the whole context.

    ``key_up`` is ``(H, N, C)``. As they are, a query and a latent vector take 2 (C + R) for the score and 2 C for the
    sum, and a query 2 C (N + V) to be turned and its result turned back; expanded, a query and a key take 2 (N + R) and
    2 V, and each token of the context 2 C (N + V). All are per head.
    """
    _, nope, rank = key_up
    turn = rank * (nope + value_dim)
    as_they_are = queries * (context * (2 * rank + rope_dim) + turn)
    return queries * context * (nope + rope_dim + value_dim) + context * turn < as_they_are
