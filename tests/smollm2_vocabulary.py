"""SmolLM2's vocabulary (Apache 2.0), compressed: as GGUF metadata and as the reference's JSON.

The file holds the special tokens, the bytes that the vocabulary knows, and the merges; in SmolLM2
the ids follow from these three in this order.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "data" / "smollm2_tokenizer.json.xz"


@cache
def _stored() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(lzma.decompress(PATH.read_bytes()))
    return data


@cache
def _tokens() -> list[str]:
    data = _stored()
    merged = dict.fromkeys(merge.replace(" ", "") for merge in data["merges"])
    return [*data["special"], *data["bytes"], *merged]


def gguf_metadata() -> dict[str, Any]:
    """The `tokenizer.*` keys of the GGUF file of SmolLM2-135M-Instruct."""
    data = _stored()
    special = len(data["special"])
    return {
        "tokenizer.ggml.model": data["model"],
        "tokenizer.ggml.pre": data["pre"],
        "tokenizer.ggml.tokens": _tokens(),
        "tokenizer.ggml.token_type": [3] * special + [1] * (len(_tokens()) - special),
        "tokenizer.ggml.merges": data["merges"],
        "tokenizer.ggml.bos_token_id": data["bos_token_id"],
        "tokenizer.ggml.eos_token_id": data["eos_token_id"],
        "tokenizer.ggml.add_bos_token": data["add_bos_token"],
        "tokenizer.chat_template": data["tokenizer.chat_template"],
    }


def tokenizer_json() -> dict[str, Any]:
    """The same vocabulary in the form of Hugging Face's `tokenizer.json`."""
    data = _stored()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": text, **flags} for id, text in enumerate(data["special"])],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(_tokens())},
            "merges": [merge.split(" ") for merge in data["merges"]],
        },
    }
