"""Draft heads as they lie on disk: ``heads.json`` says of which kind and for which target, safetensors the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from minillm.loaders.files import LoadError, read_json
from minillm.loaders.safetensors import SafetensorsDirectory
from minillm.loaders.tensors import Float32
from minillm.models.spec import Attention, Dense, LayerSpec, ModelSpec
from minillm.models.weights import layer_shapes, plain_name

HeadKind = Literal["medusa", "eagle", "mtp"]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
CONFIG = "heads.json"
_FIELDS = {"kind": str, "target": str, "depth": int}
_SCALE = "_scale"  # int8 tensors have one a row beside them


@dataclass(frozen=True)
class HeadFiles:
    """Open and checked: every tensor is there, with the shape that the target's sizes give it."""

    path: Path
    kind: HeadKind
    target: str  # the name of the model whose hidden states they read
    depth: int  # Medusa: heads; MTP: modules; EAGLE: how often its one module was trained to follow itself
    read: Callable[[str], Float32]
    num_parameters: int

    @property
    def num_modules(self) -> int:
        """Modules with weights of their own."""
        return 1 if self.kind == "eagle" else self.depth


def open_heads(path: Path, spec: ModelSpec) -> HeadFiles:
    """Open a folder of heads for the target of ``spec``. ``LoadError`` names what does not fit."""
    config = read_json(path / CONFIG)
    for name, kind in _FIELDS.items():
        if not isinstance(config.get(name), kind) or isinstance(config.get(name), bool):
            raise LoadError(
                f"{path / CONFIG}: {name} is {config.get(name)!r}, a value of type {kind.__name__} is needed"
            )
    if config["kind"] not in HEAD_KINDS or config["depth"] < 1:
        raise LoadError(
            f"{path / CONFIG}: {config['depth']} deep heads of kind {config['kind']!r}: this engine has "
            f"{', '.join(HEAD_KINDS)}, at least 1 deep"
        )
    source = SafetensorsDirectory(path)

    def read(name: str) -> Float32:
        values = source.read(name)
        return values * source.read(name + _SCALE) if values.dtype == np.int8 else values

    found = HeadFiles(path, config["kind"], config["target"], config["depth"], read, 0)
    shapes = expected_shapes(found.kind, found.num_modules, spec)
    stored = {name for name in source if not name.endswith(_SCALE)}
    if stored != set(shapes):
        raise LoadError(f"{path}: missing or left over: {', '.join(sorted(stored ^ set(shapes))[:4])}")
    for name, shape in shapes.items():
        if source.info(name).shape != shape:
            raise LoadError(f"{path}: tensor {name!r} is {source.info(name).shape}, the target's sizes need {shape}")
        if source.info(name).dtype == "I8" and name + _SCALE not in source:
            raise LoadError(f"{path}: tensor {name!r} is I8, its scales {name + _SCALE!r} are missing")
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    return HeadFiles(path, found.kind, found.target, found.depth, read, parameters)


def layer_of_module(spec: ModelSpec) -> tuple[Attention, Dense]:
    """The decoder layer inside a module: of the target's sizes, without windows, biases or norms of heads."""
    mixer, ffn = spec.layers[0].mixer, spec.layers[0].ffn
    if not isinstance(mixer, Attention) or not isinstance(ffn, Dense):
        raise LoadError(f"{spec.architecture}: draft heads are of targets that begin with attention and a dense layer")
    plain = Attention(mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rope, scale=mixer.scale)
    return plain, Dense(ffn.intermediate, ffn.activation)


def expected_shapes(kind: HeadKind, num_modules: int, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor and its shape; matrices are ``[out, in]``."""
    hidden = spec.hidden
    if kind == "medusa":
        return {f"blocks.{i}.weight": (hidden, hidden) for i in range(num_modules)}
    shapes: dict[str, tuple[int, ...]] = {
        "hidden_norm.weight": (hidden,),
        "embed_norm.weight": (hidden,),
        "join.weight": (hidden, 2 * hidden),
        "norm.weight": (hidden,),
    }
    layer = LayerSpec(*layer_of_module(spec))
    shapes |= {f"layer.{plain_name(name)}": shape for name, shape in layer_shapes(layer, hidden).items()}
    return {f"modules_.{i}.{name}": shape for i in range(num_modules) for name, shape in shapes.items()}
