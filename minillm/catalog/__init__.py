"""Models and accelerators as data, ``models.json`` and ``accelerators.json``, with source and date of the check.

An entry is named by its slug, such as ``llama-3-8b``; in a formula of the handbook it is ``llama_3_8b``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from minillm.catalog.accelerator import Accelerator, measured_machine, parse_accelerator
from minillm.catalog.formats import NATIVE, WeightFormats
from minillm.catalog.geometry import Experts, Geometry, GroupedAttention, LatentAttention
from minillm.catalog.hf_config import formats_from_hf_config, geometry_from_hf_config
from minillm.catalog.model import Model
from minillm.catalog.source import CatalogError, Source, UnknownEntryError, take

__all__ = [
    "DIMENSIONS",
    "NATIVE",
    "Accelerator",
    "CatalogError",
    "Experts",
    "Geometry",
    "GroupedAttention",
    "LatentAttention",
    "Model",
    "Source",
    "UnknownEntryError",
    "WeightFormats",
    "accelerator",
    "accelerators",
    "from_hf_config",
    "measured_machine",
    "model",
    "models",
    "names",
]

_T = TypeVar("_T")

# Dimensions of attributes and results whose names do not say their unit, as exponents of base units.
DIMENSIONS: Mapping[str, Mapping[str, int]] = {
    "memory_bandwidth": {"byte": 1, "s": -1},
    "flops": {"flop": 1, "s": -1},
    "flops_for_weights": {"flop": 1, "s": -1},
    "ridge_flops_per_byte": {"flop": 1, "byte": -1},
    "decode_flops": {"flop": 1},
    "prefill_flops": {"flop": 1},
    "matrix_flops": {"flop": 1},
    "head_flops": {"flop": 1},
    "attention_flops": {"flop": 1},
    "peak_flops": {"flop": 1, "s": -1},
    "verify_cost": {},
}


def _data(kind: str) -> Traversable:
    return resources.files("minillm.catalog") / f"{kind}.json"


def _tiny() -> Traversable:
    return resources.files("minillm") / "assets" / "models" / "tiny" / "config.json"


@cache
def models() -> Mapping[str, Model]:
    """All models by slug, sorted; ``tiny`` is the bundled target, there once it has been trained."""
    found = {slug: _parse_model(slug, raw) for slug, raw in _read(_data("models")).items()}
    if _tiny().is_file():
        found["tiny"] = from_hf_config(_read(_tiny()), slug="tiny", title="tiny (bundled)")
    return dict(sorted(found.items()))


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """All accelerators by slug, sorted."""
    found = {slug: parse_accelerator(slug, raw) for slug, raw in _read(_data("accelerators")).items()}
    return dict(sorted(found.items()))


def model(slug: str) -> Model:
    """The model ``slug``. Raises :class:`UnknownEntryError` with those that are near."""
    return _get("model", models(), slug)


def accelerator(slug: str) -> Accelerator:
    """The accelerator ``slug``. Raises :class:`UnknownEntryError` with those that are near."""
    return _get("accelerator", accelerators(), slug)


def names() -> dict[str, Model | Accelerator]:
    """Everything catalogued, under the names that a formula uses: slugs with underscores."""
    found: dict[str, Model | Accelerator] = {_identifier(slug): entry for slug, entry in models().items()}
    return found | {_identifier(slug): entry for slug, entry in accelerators().items()}


def from_hf_config(config: Mapping[str, Any], slug: str = "config", title: str = "") -> Model:
    """A model from the parsed ``config.json`` of any repository whose attention the formulas know."""
    return Model(slug, title or slug, geometry_from_hf_config(config), native=formats_from_hf_config(config))


def _parse_model(slug: str, raw: Any) -> Model:
    where = f"models.json: {slug}"
    required = {"title": str, "source": dict, "published_parameters": int, "config": dict}
    fields = take(raw, where, required, {"notes": str})
    try:
        geometry = geometry_from_hf_config(fields["config"])
        native = formats_from_hf_config(fields["config"])
    except CatalogError as error:
        raise CatalogError(f"{where}: {error}") from None
    source = Source.parse(fields["source"], f"{where}: source")
    return Model(slug, fields["title"], geometry, source, fields["published_parameters"], native)


def _read(file: Traversable) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CatalogError(f"{file.name}: not JSON: {error}") from None


def _get(kind: str, entries: Mapping[str, _T], slug: str) -> _T:
    if slug not in entries:
        near = get_close_matches(slug.lower().replace("_", "-"), entries, n=3, cutoff=0.6)
        hint = f"near are {', '.join(near)}" if near else f"there are {', '.join(entries)}"
        raise UnknownEntryError(f"the catalogue has no {kind} {slug!r}: {hint}")
    return entries[slug]


def _identifier(slug: str) -> str:
    return slug.replace("-", "_").replace(".", "_")
