"""How the tokens of a step find their experts: the rule as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen from the router's logits, and what weighs their outputs.

    A score is a softmax over all logits, or a sigmoid of its own (DeepSeek-V3, section 2.1.2). With ``groups``, only
    experts of the ``top_groups`` best groups can be chosen (DeepSeek-V2, section 2.2.1): a group is worth the sum of
    the ``group_best`` highest scores in it.
    """

    count: int
    per_token: int
    renormalize: bool = False  # the chosen scores are divided by their sum
    scale: float = 1.0  # what they are multiplied by
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
