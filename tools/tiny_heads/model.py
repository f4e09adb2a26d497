"""The three kinds of draft head in plain torch, for training only; the names are those of the shipped tensors.

Each reads the target's hidden states after its last norm, ``f [batch, tokens, hidden]``, and shares the target's
embedding and head. f_i is what token i + 1 is drawn from, so heads predict token i + 2 and those that follow.
The engine runs the result with `minillm.models.heads`. Torch is not type-checked in this project, hence the ignores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tiny_lm.model import Layer, Llama, Shape
from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """Of one depth: how far it is from what the target says there, and how often its best token is the target's."""

    nats: Tensor
    agreement: Tensor


class Heads(nn.Module):  # type: ignore[misc]
    """What the kinds share: the target, which is frozen, and the losses of their depths."""

    kind: str
    depth: int

    def __init__(self, target: Llama) -> None:
        super().__init__()
        self.shape: Shape = target.shape
        self.target = [target]  # in a list, so that it is no part of this module
        self.cos, self.sin = target.cos, target.sin

    def embedded(self, ids: Tensor) -> Tensor:
        result: Tensor = self.target[0].model.embed_tokens(ids)
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.target[0].model.embed_tokens.weight)

    def predictions(self, ids: Tensor, features: Tensor) -> Iterator[tuple[Tensor, int, Tensor]]:
        """For each depth (hidden states, n, a further loss): hidden state i is to say what f_(i + n) says."""
        raise NotImplementedError

    def losses(self, ids: Tensor, features: Tensor, places: Tensor) -> tuple[Tensor, list[Loss]]:
        """The loss to minimize, and that of each depth, for tokens ``ids [batch, tokens]`` and their features.

        Of the predicted tokens those at ``places`` count: logits are most of the work, and neighbours say much
        the same.
        """
        with torch.no_grad():
            wanted = self.logits(features[:, places]).softmax(-1)
        total, found = torch.zeros(()), []
        for n, (hidden, ahead, further) in enumerate(self.predictions(ids, features)):
            has = (places >= ahead) & (places < ahead + hidden.shape[1])
            goal = wanted[:, has]
            logits = self.logits(hidden[:, places[has] - ahead])
            nats = -(goal * F.log_softmax(logits, dim=-1)).sum(-1).mean()
            with torch.no_grad():
                agreement = (logits.argmax(-1) == goal.argmax(-1)).float().mean()
            total = total + 0.8**n * (nats + further)
            found.append(Loss(nats.detach(), agreement))
        return total, found

    def state(self) -> dict[str, Any]:
        return {name: value.detach().clone() for name, value in self.state_dict().items()}

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


class Medusa(Heads):
    """Cai et al. (2024): head k is ``f + SiLU(W_k f)``, and predicts k tokens further than the target's own head."""

    kind = "medusa"

    def __init__(self, target: Llama, depth: int = 4) -> None:
        super().__init__(target)
        self.depth = depth
        hidden = self.shape.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(depth))
        for block in self.blocks:
            nn.init.zeros_(block.weight)  # it starts as the target's own head

    def predictions(self, ids: Tensor, features: Tensor) -> Iterator[tuple[Tensor, int, Tensor]]:
        for k, block in enumerate(self.blocks, start=1):
            f = features[:, : features.shape[1] - k]
            yield f + F.silu(block(f)), k, torch.zeros(())


class Module(nn.Module):  # type: ignore[misc]
    """A hidden state and the embedding of the token after it, joined, through one decoder layer."""

    def __init__(self, target: Llama) -> None:
        super().__init__()
        shape = target.shape
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.embed_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.join = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.layer = Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        # It starts as the target's last layer, run once more on what that layer gave.
        self.layer.load_state_dict(target.model.layers[-1].state_dict())
        with torch.no_grad():
            self.join.weight.normal_(std=0.02)
            self.join.weight[:, : shape.hidden_size] += torch.eye(shape.hidden_size)
            self.norm.weight.copy_(target.model.norm.weight)

    def forward(self, hidden: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens = hidden.shape[1]
        joined = self.join(torch.cat((self.hidden_norm(hidden), self.embed_norm(embedded)), dim=-1))
        result: Tensor = self.layer(joined, cos[:tokens], sin[:tokens])
        return result


class Eagle(Heads):
    """After Li et al. (2024), EAGLE: one module predicts the next feature, and goes on from what it predicted."""

    kind = "eagle"
    passes = 2  # the second one is trained on the first one's features

    def __init__(self, target: Llama) -> None:
        super().__init__(target)
        self.depth = self.passes
        self.modules_ = nn.ModuleList([Module(target)])

    def predictions(self, ids: Tensor, features: Tensor) -> Iterator[tuple[Tensor, int, Tensor]]:
        module = self.modules_[0]
        embedded, given = self.embedded(ids[:, 1:]), features[:, :-1]
        for _ in range(self.passes):
            predicted = module.norm(module(given, embedded, self.cos, self.sin))
            yield predicted, 1, 2.0 * F.smooth_l1_loss(predicted, features[:, 1:])
            given = torch.cat((features[:, :1], predicted[:, :-1].detach()), dim=1)


class Mtp(Heads):
    """After DeepSeek-V3 (2024), section 2.2: a module a depth, each on the hidden states of the one before."""

    kind = "mtp"

    def __init__(self, target: Llama, depth: int = 3) -> None:
        super().__init__(target)
        self.depth = depth
        self.modules_ = nn.ModuleList(Module(target) for _ in range(depth))

    def predictions(self, ids: Tensor, features: Tensor) -> Iterator[tuple[Tensor, int, Tensor]]:
        hidden = features
        for k, module in enumerate(self.modules_, start=1):
            given, embedded = hidden[:, : ids.shape[1] - k], self.embedded(ids[:, k:])
            hidden = module(given, embedded, self.cos, self.sin)
            yield module.norm(hidden), k, torch.zeros(())


KINDS: dict[str, type[Heads]] = {"medusa": Medusa, "eagle": Eagle, "mtp": Mtp}
