"""From the tensors of a checkpoint to the weights that layers are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minillm.loaders.tensors import Float32
from minillm.ops.base import Array
from minillm.ops.linear import Linear


@dataclass(frozen=True, slots=True)
class Reader:
    """Tensors of one checkpoint as one library's arrays.

    ``read`` gives a tensor by its canonical name (`minillm.models.weights`); ``matrix`` joins rows and converts to the
    backend's dtype and device; ``vector`` converts the weight of a norm, which stays in float32 where matrices do not.
    ``norm_offset`` is added to norms.
    """

    read: Callable[[str], Float32]
    matrix: Callable[[Sequence[Float32]], Array]
    vector: Callable[[Float32], Array]
    norm_offset: float = 0.0

    def linear(self, prefix: str, *names: str, bias: bool = False) -> Linear:
        """The rows of tensors ``prefix + name`` as one matrix, which one operation reads."""
        rows = self.matrix([self.read(prefix + name) for name in names])
        biases = self.matrix([self.read(f"{prefix}{name}_bias") for name in names]) if bias else None
        return Linear(rows, biases)

    def norm(self, name: str) -> Array:
        return self.vector(self.read(name) + np.float32(self.norm_offset))
