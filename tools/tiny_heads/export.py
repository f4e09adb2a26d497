"""Writes trained heads as they ship: weights rounded to int8, ``heads.json``, and a card with what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_lm import storage
from tiny_lm.export import write
from tiny_lm.rounding import read_back, rounded

from .model import Heads


def export_heads(out: Path, heads: Heads) -> None:
    """Weights and ``heads.json`` under ``out``; the card comes when these were run."""
    storage.save(out / "model.safetensors", rounded(heads.state()), {"format": "pt"})
    config = {"kind": heads.kind, "target": "tiny", "depth": heads.depth}
    write(out / "heads.json", json.dumps(config, indent=2) + "\n")


def restored(heads: Heads, path: Path) -> Heads:
    """``heads`` with the values that a loader reads from a shipped file."""
    tensors, _ = storage.load(path)
    heads.load_state_dict(read_back(tensors))
    return heads
