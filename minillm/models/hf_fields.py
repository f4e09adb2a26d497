"""Typed access to the fields of a Hugging Face ``config.json``: each is read, refused, or known to change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minillm.models.spec import SpecError

# Fields that do not change what the decoder computes: bookkeeping, training, text generation.
# fmt: off
_HARMLESS = frozenset({
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache",
    "initializer_range", "attention_dropout", "hidden_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
    "pretraining_tp", "auto_map", "id2label", "label2id", "num_labels", "problem_type", "output_hidden_states",
    "output_attentions", "return_dict", "is_encoder_decoder", "is_decoder", "torchscript",
    "tie_last_hidden_states", "chunk_size_feed_forward", "quantization_config", "cache_implementation",
    "is_llama_config", "transformers.js_config", "unsloth_version", "unsloth_fixed", "mlp_dropout", "resid_pdrop",
    "name_or_path", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p",
    "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
    "repetition_penalty", "router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "finetuning_task",
    "task_specific_params", "tokenizer_class", "use_bfloat16",
    "tf_legacy_loss", "keys_to_ignore_at_inference", "hidden_act", "max_window_layers",
})
# fmt: on
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


class Fields:
    """Typed access to a config with defaults; refuses fields that could change the maths unseen."""

    def __init__(self, architecture: str, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.architecture, self.config, self.defaults = architecture, config, defaults
        known = {*_SIZES, *defaults}
        for name, value in config.items():
            # An unknown switch that is off changes nothing; one that is on, or a number, may.
            if name in known or name in _HARMLESS or name.startswith("_") or value in (None, False, [], {}):
                continue
            raise SpecError(
                f"config.json: {architecture} has the field {name} = {value!r}, which this engine does not know "
                "and will not ignore"
            )

    def get(self, name: str, default: object = None) -> Any:
        return self.config.get(name, self.defaults.get(name, default))

    def size(self, name: str, fallback: int | None = None, lowest: int = 1) -> int:
        value = self.get(name)
        value = fallback if value is None else value
        if type(value) is not int or not lowest <= value < 2**31:
            raise SpecError(f"config.json: {name} is {value!r}, a whole number from {lowest} to 2**31 - 1 is needed")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value not in (None, True, False):
            raise SpecError(f"config.json: {name} is {value!r}, true or false is needed")
        return bool(value)

    def number(self, name: str) -> float:
        value = real(self.get(name))
        if value is None or value <= 0:
            raise SpecError(f"config.json: {name} is {self.get(name)!r}, a finite number above 0 is needed")
        return value

    def indices(self, name: str, limit: int) -> frozenset[int]:
        """A list of layers; none where the field is missing."""
        value = self.get(name) or []
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < limit for i in value):
            raise SpecError(f"config.json: {name} is {value!r}, a list of layers from 0 to {limit - 1} is needed")
        return frozenset(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def demand(self, name: str, *allowed: object) -> None:
        if self.get(name) not in allowed:
            raise SpecError(f"config.json: {name} is {self.get(name)!r}, this engine has only {allowed[0]!r}")


def real(value: object) -> float | None:
    """``value`` as a finite float, or None; JSON has integers that no float can hold, and NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e30 < value < 1e30:
        return None
    return float(value)
