"""The rejection rule of `minillm.speculate.rejection` for all rows at once, on torch's device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.ops.numpy_rejection import proposed
from minillm.speculate.rejection import Proposal


def draw_against(target: Tensor, proposals: Sequence[Proposal], uniforms: Sequence[float]) -> list[int]:
    """One id for each row of ``target [n, V]``, probabilities; the drafted one exactly where that is kept."""

    def put(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=target.device)[:, None]

    q = torch.from_numpy(proposed(proposals, target.shape[1])).to(target.device)
    drafted = torch.tensor([proposal.token_id for proposal in proposals], device=target.device)[:, None]
    kept = put([proposal.coin for proposal in proposals]) * q.gather(1, drafted) < target.gather(1, drafted)
    residual = (target - q).clamp(min=0.0).scatter(1, drafted, 0.0)
    residual = torch.where(residual.sum(1, keepdim=True) <= 0, target, residual)  # equal but for rounding
    running = residual.cumsum(dim=1)
    wanted = put(uniforms) * residual.sum(1, keepdim=True)
    # Rounding may keep the last sum under the draw: then it is the last token that has any weight.
    ids = torch.arange(target.shape[1], device=target.device)
    last = torch.where(residual > 0, ids, -1).amax(1, keepdim=True)
    place = torch.minimum((running <= wanted).sum(1, keepdim=True), last)
    result: list[int] = torch.where(kept, drafted, place).squeeze(1).tolist()
    return result
