"""Trains the shared byte-level BPE vocabulary and turns text into one stream of token ids."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import Speech

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)  # ids 0, 1, 2


def train_vocabulary(texts: list[str], path: Path) -> Tokenizer:
    """A vocabulary of `VOCAB_SIZE` tokens, written to `path` as a `tokenizer.json`.

    Digits stand alone and the rest is split by the GPT-2 pattern, as in SmolLM2. All 256 bytes are
    in the base alphabet, so no text is unknown.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def chat_text(user: str, assistant: str) -> str:
    """One exchange in ChatML, byte for byte what the shipped chat template writes."""
    return f"{IM_START}user\n{user}{IM_END}\n{IM_START}assistant\n{assistant}{IM_END}\n"


def encode_stream(
    tokenizer: Tokenizer, speeches: list[Speech], turns: list[tuple[str, str]], seed: int
) -> torch.Tensor:
    """All documents in a seeded order, each after one end-of-text token, as int64 `[tokens]`."""
    documents = [speech.text for speech in speeches]
    # Chats go into bundles of eight, so that they are spread over the stream.
    chats = [chat_text(*turn) for turn in turns]
    documents += [END_OF_TEXT.join(chats[at : at + 8]) for at in range(0, len(chats), 8)]
    random.Random(seed).shuffle(documents)  # noqa: S311 - an order, not a secret
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([END_OF_TEXT + document for document in documents]):
        ids.extend(encoding.ids)
    return torch.tensor(ids, dtype=torch.int64)
