"""The rotary embedding that a Hugging Face ``config.json`` describes, in the spelling of today or of before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from minillm.models.hf_fields import Fields, real
from minillm.models.spec import Rope, SpecError


def rope_table(fields: Fields) -> Mapping[str, Any]:
    """``rope_parameters``, or what older files have in its place."""
    given = fields.get("rope_parameters")
    old = fields.get("rope_scaling")
    if given is not None and old is not None and given != old:
        raise SpecError(f"config.json: rope_parameters {given!r} and rope_scaling {old!r} contradict each other")
    table = given if given is not None else old if old is not None else {}
    if not isinstance(table, dict):
        raise SpecError(f"config.json: rope_parameters is {table!r}, an object is needed")
    return table


def stretched(factor: float, weight: float) -> float:
    """How much larger than without it scores get where a context is stretched by ``factor`` (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def rope_of(fields: Fields, dim: int, *, is_windowed: bool) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    table = rope_table(fields)
    outer_theta = fields.get("rope_theta")
    if fields.architecture == "Gemma3ForCausalLM":  # layers with a window turn faster, and have no scaling
        layer_type = "sliding_attention" if is_windowed else "full_attention"
        if "sliding_attention" in table or "full_attention" in table:
            own = table.get(layer_type)
            if not isinstance(own, dict):
                raise SpecError(f"config.json: rope_parameters has {own!r} for {layer_type}, an object is needed")
            table = own
        elif is_windowed:
            table, outer_theta = {}, fields.get("rope_local_base_freq")
    theta = table.get("rope_theta", 10000.0 if outer_theta is None else outer_theta)
    kind = table.get("rope_type", table.get("type", "default"))
    partial = table.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise SpecError(f"config.json: partial_rotary_factor is {partial!r}, this engine rotates whole heads")
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "yarn": ("factor", "original_max_position_embeddings"),
    }
    optional = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
    if not isinstance(kind, str) or kind not in needed:
        raise SpecError(f"config.json: rope type is {kind!r}, this engine has {', '.join(needed)}")
    given_numbers = {"rope_theta": theta}
    for name in needed[kind]:
        # transformers falls back to max_position_embeddings for the original length only.
        fallback = fields.get("max_position_embeddings") if name == "original_max_position_embeddings" else None
        given_numbers[name] = table.get(name, fallback)
    numbers = {}
    for name, value in given_numbers.items():
        number = real(value)
        if number is None:
            raise SpecError(f"config.json: rope {name} is {value!r} for rope type {kind!r}, a number is needed")
        numbers[name] = number
    more = optional if kind == "yarn" else ()
    allowed = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *needed[kind], *more}
    for name, value in table.items():
        if name not in allowed and value is not None and kind != "default":
            raise SpecError(f"config.json: rope type {kind!r} has the unknown field {name} = {value!r}")
    if kind == "yarn":
        return _yarn(dim, numbers, table)
    return Rope(
        dim,
        theta=numbers["rope_theta"],
        scaling=cast(Any, {"default": "none"}.get(kind, kind)),
        factor=numbers.get("factor", 1.0),
        low_freq_factor=numbers.get("low_freq_factor", 1.0),
        high_freq_factor=numbers.get("high_freq_factor", 4.0),
        original_max_positions=int(numbers.get("original_max_position_embeddings", 0)),
    )


def _yarn(dim: int, numbers: Mapping[str, float], table: Mapping[str, Any]) -> Rope:
    """The defaults and the amplitude are those of transformers; a weight that is 0 counts as none."""
    names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
    given = {name: table.get(name) for name in names}
    found = {name: real(value) for name, value in given.items()}
    for name, value in given.items():
        if value is not None and found[name] is None:
            raise SpecError(f"config.json: rope {name} is {value!r} for rope type 'yarn', a number is needed")
    factor, amplitude = numbers["factor"], found["attention_factor"]
    if amplitude is None:
        own, of_all = found["mscale"], found["mscale_all_dim"]
        amplitude = stretched(factor, own) / stretched(factor, of_all) if own and of_all else stretched(factor, 1)
    truncate = table.get("truncate", True)
    if not isinstance(truncate, bool):
        raise SpecError(f"config.json: rope truncate is {truncate!r}, true or false is needed")
    return Rope(
        dim,
        numbers["rope_theta"],
        "yarn",
        factor=factor,
        beta_fast=found["beta_fast"] or 32.0,
        beta_slow=found["beta_slow"] or 1.0,
        truncate=truncate,
        amplitude=amplitude,
        original_max_positions=int(numbers["original_max_position_embeddings"]),
    )
