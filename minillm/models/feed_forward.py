"""The dense feed-forward of a layer, which works on each token alone.

A feed-forward takes the normed hidden states ``[n, hidden]`` and returns what is added to them.
`minillm.models.experts` is another, `minillm.models.layers` says which layer has which.
"""

from __future__ import annotations

from minillm.models.reader import Reader
from minillm.models.spec import Dense
from minillm.ops.base import Array, Ops


class DenseFeedForward:
    """``down(activation(gate(x)) * up(x))``; gate and up are one matrix, read in one go."""

    def __init__(self, spec: Dense, reader: Reader, prefix: str) -> None:
        self._activation = spec.activation
        self._gate_up = reader.linear(prefix, "gate", "up", bias=spec.bias)
        self._down = reader.linear(prefix, "down", bias=spec.bias)

    def __call__(self, ops: Ops, x: Array) -> Array:
        return ops.linear(ops.swiglu(ops.linear(x, self._gate_up), self._activation), self._down)
