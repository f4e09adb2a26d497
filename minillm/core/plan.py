"""The only two things that cross from the control plane to a backend and back.

A plan is flat: the tokens of all requests of a step lie in one list, as attention kernels want them.
Nothing in it is a tensor, so a plan can be printed, stored and compared.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minillm.core.sampling import SamplingParams
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.sampling.shaping import Transform
from minillm.speculate.rejection import Proposal, Row


@dataclass(slots=True)
class GroupTables:
    """Where one layer group's K/V of a step's tokens is, as in the plan it belongs to."""

    slot_mapping: list[int]  # [T]
    block_tables: list[Sequence[int]]  # [R]


@dataclass(slots=True)
class StepPlan:
    """One step of the engine for ``R`` requests, ``T`` tokens and ``S`` draws in all.

    Request ``r`` owns the flat tokens ``query_start_loc[r]:query_start_loc[r + 1]``. They lie at consecutive places of
    its block table; the first place is the number of its tokens whose K/V is already in the cache. A token's
    position in its sequence is its place, but for the tokens of a tree.

    A row in ``trees`` ends with the tokens of a token tree: for each its parent among them, or -1 for the row's
    token before them. Such a token attends to its ancestors, itself and what lies before the tree; its
    position is that of the token before the tree, and as many more as there are tokens on its path.

    A draw takes the logits after one flat token. A request may have none, one, or several; draws are
    ordered by their flat token, thus by request. The fields at the end are sparse: a token, draw or row that
    wants nothing of the kind is not in them.

    A table begins with null blocks where sliding windows have left blocks behind: no query of the plan sees a token
    in their place, and nothing may be read there.

    Nothing in a plan changes once it is made, except that a table may have grown by the time it is read, or have
    left more behind: ``seq_lens`` says how much of it is the request's in this step.
    """

    step: int
    block_size: int
    request_ids: list[str] = field(default_factory=list)  # [R]
    token_ids: list[int] = field(default_factory=list)  # [T]
    positions: list[int] = field(default_factory=list)  # [T], position in its sequence
    slot_mapping: list[int] = field(default_factory=list)  # [T], block * block_size + offset to write K/V to
    query_start_loc: list[int] = field(default_factory=lambda: [0])  # [R + 1]
    seq_lens: list[int] = field(default_factory=list)  # [R], K/V entries to read, this step's included
    block_tables: list[Sequence[int]] = field(default_factory=list)  # [R], each covers its context at least
    logits_indices: list[int] = field(default_factory=list)  # [S], flat tokens whose logits give a draw, rising
    sampling: list[SamplingParams] = field(default_factory=list)  # [S]
    uniforms: list[float] = field(default_factory=list)  # [S], f(seed, output index) in [0, 1)
    transforms: dict[int, Transform] = field(default_factory=dict)  # by draw: what else shapes its logits
    logprobs: dict[int, int] = field(default_factory=dict)  # by draw: how many top log-probabilities are wanted
    # By draw that is in ``logprobs``: the token whose log-probability is wanted, if not the one drawn. So for
    # a prompt, whose tokens are given; nobody looks at what is drawn there.
    targets: dict[int, int] = field(default_factory=dict)
    trees: dict[int, Sequence[int]] = field(default_factory=dict)  # by row
    # By draw: the drafted token in whose place it is made, for the rule of `minillm.speculate.rejection`.
    proposals: dict[int, Proposal] = field(default_factory=dict)
    # By flat token that is not known yet: which draw of the step before it is. Its place in ``token_ids`` holds 0.
    # Only in plans for ``AsyncBackend.submit``.
    drawn: dict[int, int] = field(default_factory=dict)
    # Of layer groups 1, 2, ...: what ``slots`` and ``block_tables`` are of group 0 or of all layers.
    groups: list[GroupTables] = field(default_factory=list)
    distributions: Collection[int] = ()  # draws whose distribution is wanted: those of a draft model
    wants_hidden: bool = False  # whether the hidden states that the draws were made from are wanted: by draft heads


def slots_at(tables: Iterable[Sequence[int]], places: Iterable[int], block_size: int) -> list[int]:
    """For each token the K/V slot at a place of its block table."""
    return [table[p // block_size] * block_size + p % block_size for table, p in zip(tables, places, strict=False)]


def slots_of(plan: StepPlan, block_tables: Sequence[Sequence[int]], num_single: int = 0) -> list[int]:
    """``[T]``: where the plan's tokens write with these tables ``[R]``, each at the last places of its row's context.

    The first ``num_single`` rows have one token each: a step of plain decodes takes no longer than it must.
    """
    if num_single == len(block_tables):
        return slots_at(block_tables, plan.positions, plan.block_size)
    tables, places = list(block_tables[:num_single]), plan.positions[:num_single]
    for row in range(num_single, len(block_tables)):
        count, end = plan.query_start_loc[row + 1] - plan.query_start_loc[row], plan.seq_lens[row]
        tables += [block_tables[row]] * count
        places += range(end - count, end)
    return slots_at(tables, places, plan.block_size)


@dataclass(slots=True)
class StepResult:
    """What a backend returns: one drawn id for each of the plan's ``logits_indices``, in that order."""

    token_ids: list[int]  # [S]
    elapsed_s: float
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # for the draws of the plan's ``logprobs``
    distributions: dict[int, Row] = field(default_factory=dict)  # for the draws of the plan's ``distributions``
    # By draw that could not be made, for its logits are no numbers: where that began. Its id means nothing, and its
    # row ends; the other rows are sound.
    faults: dict[int, str] = field(default_factory=dict)
    hidden: Sequence[Any] | None = None  # [S], if the plan wants them; only the backend's own heads look inside
