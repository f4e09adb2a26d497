"""Writes trained heads as they ship: weights rounded to int8, ``heads.json``, and a card with what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_lm import storage
from tiny_lm.export import write
from torch import Tensor

from .model import Heads


def rounded(heads: Heads) -> dict[str, Tensor]:
    """Every matrix in int8 with one scale a row, norms in float32: the layout of `tiny_lm.rounding`."""
    tensors: dict[str, Tensor] = {}
    for name, value in heads.state().items():
        if value.dim() == 1:
            tensors[name] = value
            continue
        scale = (value.abs().amax(dim=1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        tensors[name] = (value / scale).round().to(torch.int8)
        tensors[name + "_scale"] = scale
    return tensors


def export_heads(out: Path, heads: Heads) -> None:
    """Weights and ``heads.json`` under ``out``; the card comes when these were run."""
    storage.save(out / "model.safetensors", rounded(heads), {"format": "pt"})
    config = {"kind": heads.kind, "target": "tiny", "depth": heads.depth}
    write(out / "heads.json", json.dumps(config, indent=2) + "\n")


def restored(heads: Heads, path: Path) -> Heads:
    """``heads`` with the values that a loader reads from a shipped file."""
    tensors, _ = storage.load(path)
    values = {
        name: value * tensors[name + "_scale"] if value.dtype == torch.int8 else value
        for name, value in tensors.items()
        if not name.endswith("_scale")
    }
    heads.load_state_dict(values)
    return heads
