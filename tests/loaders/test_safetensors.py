"""The safetensors reader: values against the official library, and every kind of broken file."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from minillm.loaders.files import LoadError
from minillm.loaders.safetensors import SafetensorsDirectory, SafetensorsFile


def sample_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "f32": torch.randn(3, 5),
        "f16": torch.randn(4, 2).half(),
        "bf16": torch.randn(7).bfloat16(),
        "i8": torch.randint(-128, 128, (2, 3), dtype=torch.int8),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
    }


def test_every_dtype_reads_as_the_official_library_wrote_it(tmp_path: Path) -> None:
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file) == set(tensors)
    for name, tensor in tensors.items():
        wanted = tensor.numpy() if tensor.dtype == torch.int8 else tensor.float().numpy()
        found = file.read(name)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def raw_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BROKEN: dict[str, tuple[Any, bytes, str]] = {
    "cut off": ({"a": entry()}, b"\0" * 7, r"tensor 'a' needs bytes .* the file ends .* cut off"),
    "trailing bytes": ({"a": entry()}, b"\0" * 9, "cover 8 of 9 data bytes"),
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, "tensor 'b' .* overlaps 'a'"),
    "gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, b"\0" * 20, "cover 16 of 20"),
    "unknown dtype": ({"a": entry(dtype="F8_E4M3")}, b"\0" * 8, "'F8_E4M3' is not supported, .* F32, F16"),
    "dtype is a list": ({"a": entry(dtype=["F32"])}, b"\0" * 8, "not supported"),
    "size mismatch": ({"a": entry(shape=(3,))}, b"\0" * 8, "takes 12 bytes, data_offsets span 8"),
    "absurd shape": ({"a": entry(shape=(2**40, 2**40))}, b"\0" * 8, "takes"),
    "negative shape": ({"a": entry(shape=(-1,))}, b"\0" * 8, "shape"),
    "float shape": ({"a": entry(shape=(2.0,))}, b"\0" * 8, "shape"),
    "backward offsets": ({"a": entry(offsets=(8, 0))}, b"\0" * 8, r"not \[begin, end\]"),
    "extra field": ({"a": {**entry(), "x": 1}}, b"\0" * 8, "dtype, shape and data_offsets"),
    "entry is a number": ({"a": 1}, b"", "an object with"),
    "not json": (b"{" * 10, b"", "not valid JSON"),
    "deep json": (b"[" * 200_000, b"", "not valid JSON"),
    "array": (b"[]", b"", "a JSON object is needed"),
    "twice": (b'{"a":1,"a":1}', b"", "'a' stands there twice"),
    "not utf-8": (b'{"\xff":1}', b"", "not valid JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_with_what_was_expected(case: str, tmp_path: Path) -> None:
    header, data, message = BROKEN[case]
    path = raw_file(tmp_path / "broken.safetensors", header, data)
    with pytest.raises(LoadError, match=message) as caught:
        SafetensorsFile(path)
    assert "broken.safetensors" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, (2**62).to_bytes(8, "little") + b"{}"])
def test_no_header_at_all(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LoadError):
        SafetensorsFile(tmp_path / "x")


def test_a_missing_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="nowhere"):
        SafetensorsFile(tmp_path / "nowhere")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_does_anything_but_load_or_raise_load_error(data: st.DataObject, tmp_path: Path) -> None:
    valid = tmp_path / "valid.safetensors"
    if not valid.exists():
        save_file(sample_tensors(), valid)
    raw = bytearray(valid.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.sampled_from([len(raw), data.draw(st.integers(0, len(raw)))]))]
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        file = SafetensorsFile(path)
        for name in file:
            file.read(name)
    except LoadError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


def shards(directory: Path, index: Any) -> Path:
    directory.mkdir(exist_ok=True)
    save_file({"a": torch.ones(2)}, directory / "one.safetensors")
    save_file({"b": torch.full((3,), 2.0)}, directory / "two.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_shards_are_one_model(tmp_path: Path) -> None:
    directory = shards(tmp_path, {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    source = SafetensorsDirectory(directory)
    assert set(source) == {"a", "b"}
    np.testing.assert_array_equal(source.read("b"), np.full(3, 2, np.float32))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors"}, None),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "tensor 'c' is missing"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "tensor 'b' is missing"),
        ({"a": "three.safetensors"}, "three.safetensors"),
        ({"a": "../one.safetensors"}, "a file name is needed"),
        ({"a": "/etc/passwd"}, "a file name is needed"),
        ({"a": "x\0.safetensors"}, "cannot be read"),
        ({"a": 1}, "a file name is needed"),
        ([], "an object is needed"),
        ({"a": "two.safetensors"}, "tensor 'a' is missing"),
    ],
)
def test_a_wrong_index_is_named(weight_map: Any, message: str | None, tmp_path: Path) -> None:
    directory = shards(tmp_path / "m", {"weight_map": weight_map})
    if message is None:  # a shard that the index does not mention is not opened
        assert set(SafetensorsDirectory(directory)) == {"a"}
        return
    with pytest.raises(LoadError, match=message):
        SafetensorsDirectory(directory)


def test_a_tensor_that_its_index_does_not_know(tmp_path: Path) -> None:
    directory = shards(tmp_path, {"weight_map": {"a": "one.safetensors"}})
    save_file({"a": torch.ones(2), "stray": torch.ones(1)}, directory / "one.safetensors")
    with pytest.raises(LoadError, match=r"'stray' is not in model.safetensors.index.json"):
        SafetensorsDirectory(directory)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"holds neither model.safetensors nor"):
        SafetensorsDirectory(tmp_path)
