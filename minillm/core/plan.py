"""The only two things that cross from the control plane to a backend and back.

A plan is flat: the tokens of all requests of a step lie in one list, as attention kernels want them.
Nothing in it is a tensor, so a plan can be printed, stored and compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.core.sampling import SamplingParams


@dataclass(slots=True)
class StepPlan:
    """One step of the engine for ``R`` requests and ``T`` tokens in all.

    Request ``r`` owns the flat tokens ``query_starts[r]:query_starts[r + 1]``. Their positions are
    consecutive; the first equals the number of its tokens whose K/V is already in the cache.
    """

    step: int
    block_size: int
    request_ids: list[str] = field(default_factory=list)  # [R]
    token_ids: list[int] = field(default_factory=list)  # [T]
    positions: list[int] = field(default_factory=list)  # [T], position in its sequence
    slots: list[int] = field(default_factory=list)  # [T], block * block_size + offset to write K/V to
    query_starts: list[int] = field(default_factory=lambda: [0])  # [R + 1]
    context_lengths: list[int] = field(default_factory=list)  # [R], K/V entries to read, this step's included
    block_tables: list[Sequence[int]] = field(default_factory=list)  # [R], covers context_lengths
    sample_rows: list[int] = field(default_factory=list)  # indices r whose last token's logits are sampled
    sampling: list[SamplingParams] = field(default_factory=list)  # [len(sample_rows)]
    uniforms: list[float] = field(default_factory=list)  # [len(sample_rows)], f(seed, output index) in [0, 1)


@dataclass(slots=True)
class StepResult:
    """What a backend returns: one sampled id for each of the plan's ``sample_rows``, in that order."""

    token_ids: list[int]
    elapsed_s: float
    logprobs: list[float] | None = None
