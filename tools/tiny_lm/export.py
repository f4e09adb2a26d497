"""Writes a trained model as a Hugging Face directory: rounded weights, configuration, vocabulary, card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import storage, vocab
from .card import Facts, card
from .model import Llama
from .rounding import restored, rounded
from .train import Plan, evaluate

# ChatML without a default system message: it was in no training text.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SAMPLE_PROMPT = "My fellow citizens,"
SAMPLE_TOKENS = 160
SAMPLE_TEMPERATURE = 0.8
SAMPLE_SEED = 1


def quantization_config() -> dict[str, Any]:
    """What compressed-tensors calls the layout of `rounding`."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear", "Embedding"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [],
    }


def config(model: Llama) -> dict[str, Any]:
    """`config.json` of `LlamaForCausalLM`."""
    shape = model.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "eos_token_id": [0, 2],
        "torch_dtype": "float32",
        "quantization_config": quantization_config(),
    }


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`: the end-of-text token stands between documents, and is not put first."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "bos_token": vocab.END_OF_TEXT,
        "eos_token": vocab.IM_END,
        "pad_token": vocab.END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def sample(model: Llama, tokenizer: Tokenizer, prompt: str) -> str:
    """`prompt` and `SAMPLE_TOKENS` more, drawn by a seeded torch generator, without a cache."""
    generator = torch.Generator().manual_seed(SAMPLE_SEED)
    ids: list[int] = tokenizer.encode(prompt).ids
    for _ in range(SAMPLE_TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1] / SAMPLE_TEMPERATURE
        ids.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
        if ids[-1] in (0, 2):
            break
    text: str = tokenizer.decode(ids)
    return text


def acceptance(target: Llama, draft: Llama, stream: Tensor, tokens: int = 512, windows: int = 32) -> float:
    """Chance that the target keeps one drafted token: the mean of sum(min(p, q)) at temperature 1.

    Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, section 3.3.
    """
    total = 0.0
    for at in range(0, windows * tokens, tokens):
        ids = stream[at : at + tokens].unsqueeze(0)
        with torch.no_grad():
            p, q = target(ids).softmax(-1), draft(ids).softmax(-1)
        total += torch.minimum(p, q).sum(-1).mean().item()
    return total / windows


def export_model(
    out: Path,
    model: Llama,
    plan: Plan,
    steps: int,
    tokenizer_path: Path,
    held_out: Tensor,
    held_out_bytes: int,
    target: Llama | None,
    note: str,
) -> Llama:
    """Write everything under `out`; returns the model with the rounded weights.

    `target` is the rounded target of a draft model.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tensors = rounded(model.state())
    shipped = restored(model, tensors)
    loss = evaluate(shipped, held_out)
    facts = Facts(
        name=out.name,
        parameters=model.parameter_count(),
        plan=plan,
        steps=steps,
        loss_before=evaluate(model, held_out),
        loss=loss,
        loss_long=evaluate(shipped, held_out, tokens=1024),
        bits_per_byte=loss * (len(held_out) - 1) / held_out_bytes / 0.6931471805599453,
        held_out_tokens=len(held_out),
        acceptance=None if target is None else acceptance(target, shipped, held_out),
        sample=sample(shipped, tokenizer, SAMPLE_PROMPT),
        sample_seed=SAMPLE_SEED,
        sample_temperature=SAMPLE_TEMPERATURE,
        sample_prompt=SAMPLE_PROMPT,
        note=note,
    )
    storage.save(out / "model.safetensors", tensors, {"format": "pt"})
    # Without the indentation that the library writes, the file is less than half as long.
    vocabulary = json.loads(tokenizer_path.read_text(encoding="utf-8"))
    compact = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")) + "\n"
    write(out / "tokenizer.json", compact)
    for name, content in (
        ("config.json", config(model)),
        ("generation_config.json", {"bos_token_id": 0, "eos_token_id": [0, 2]}),
        ("tokenizer_config.json", tokenizer_config()),
    ):
        write(out / name, json.dumps(content, indent=2) + "\n")
    write(out / "MODEL_CARD.md", card(facts))
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{out}: {size:,} bytes, held-out loss {facts.loss_before:.4f}, after rounding {loss:.4f}", flush=True)
    print(facts.sample, flush=True)
    return shipped


def write(path: Path, text: str) -> None:
    """Write `text` so that the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)
