"""The operators of a decoder: the seam between an architecture and the library that computes it.

`minillm.ops.base` states what each operator does; `numpy_ops` and `torch_ops` compute the same.
"""

from typing import Literal

Activation = Literal["silu", "gelu_tanh"]  # of a gated feed-forward
