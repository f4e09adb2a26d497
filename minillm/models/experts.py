"""A mixture of experts as a layer's feed-forward."""

from __future__ import annotations

from minillm.models.feed_forward import DenseFeedForward
from minillm.models.reader import Reader
from minillm.models.spec import Dense, Experts
from minillm.ops.base import Array, Ops


class ExpertsFeedForward:
    """Each token visits the experts that the router chooses for it, and the shared ones."""

    def __init__(self, spec: Experts, reader: Reader, prefix: str) -> None:
        self._spec = spec
        self._router = reader.linear(prefix, "router")
        self._correction = reader.vector(reader.read(prefix + "correction")) if spec.correction else None
        each = [f"{prefix}experts.{e}." for e in range(spec.routing.count)]
        self._gate_up = [reader.linear(expert, "gate", "up") for expert in each]
        self._down = [reader.linear(expert, "down") for expert in each]
        shared = Dense(spec.shared_intermediate, spec.activation)
        self._shared = DenseFeedForward(shared, reader, f"{prefix}shared.") if spec.shared_intermediate else None

    def __call__(self, ops: Ops, x: Array) -> Array:
        chosen, shares = ops.route(ops.linear(x, self._router), self._spec.routing, self._correction)
        out = ops.experts(x, chosen, shares, self._gate_up, self._down, self._spec.activation)
        return out if self._shared is None else out + self._shared(ops, x)
