"""How the tokens of a step find their experts: the rule as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen from the router's logits, and what weighs their outputs.

    The scores are the softmax of all logits. With ``groups``, only experts of the ``top_groups`` groups with the
    highest best score can be chosen (DeepSeek-V2, section 2.2.1).
    """

    count: int
    per_token: int
    renormalize: bool = False  # the chosen scores are divided by their sum
    scale: float = 1.0  # what they are multiplied by
    groups: int = 1
    top_groups: int = 1
