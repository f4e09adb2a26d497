"""The GGUF reader: formats against the package `gguf` and hand values, and every kind of broken file."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minillm.loaders.dequantize import FORMATS, dequantize
from minillm.loaders.files import LoadError
from minillm.loaders.gguf import GGUFFile

BY_NAME = {f.name: f for f in FORMATS.values()}
# Where the float16 scales of a block lie, so that random bytes do not make them infinite.
SCALES_AT = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


@pytest.mark.parametrize("name", SCALES_AT)
def test_random_blocks_decode_as_in_the_reference(name: str) -> None:
    block = BY_NAME[name]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (200, block.nbytes), dtype=np.uint8)
    for at in SCALES_AT[name]:
        raw[:, at : at + 2] = rng.normal(0, 2, (200, 1)).astype("<f2").view(np.uint8)
    wanted = gguf.dequantize(raw, gguf.GGMLQuantizationType[name]).ravel()
    np.testing.assert_allclose(dequantize(raw.ravel(), block), wanted, rtol=1e-6, atol=0)


def test_slices_of_a_large_tensor_join(monkeypatch: pytest.MonkeyPatch) -> None:
    from minillm.loaders import dequantize as module

    raw = np.random.default_rng(0).integers(0, 100, 34 * 50, dtype=np.uint8)
    whole = dequantize(raw, BY_NAME["Q8_0"])
    monkeypatch.setattr(module, "_SLICE_ELEMENTS", 32 * 7)
    np.testing.assert_array_equal(dequantize(raw, BY_NAME["Q8_0"]), whole)


def half(value: float) -> bytes:
    return struct.pack("<e", value)


HAND: dict[str, tuple[bytes, dict[int, float]]] = {
    # d = 0.5; byte 3 is element 3, signed
    "Q8_0": (half(0.5) + bytes([0, 1, 2, 0xFE, *[0] * 28]), {0: 0.0, 1: 0.5, 2: 1.0, 3: -1.0, 31: 0.0}),
    # byte 0 = 0xF1: element 0 is 1 - 8, element 16 is 15 - 8
    "Q4_0": (half(2) + bytes([0xF1, *[0x88] * 15]), {0: -14.0, 16: 14.0, 1: 0.0, 17: 0.0}),
    "Q4_1": (half(2) + half(-3) + bytes([0xF1, *[0] * 15]), {0: -1.0, 16: 27.0, 1: -3.0}),
    # the fifth bits are one little-endian word: bit 0 for element 0, bit 16 for element 16
    "Q5_0": (half(1) + struct.pack("<I", 1 << 16) + bytes([0x21, *[0] * 15]), {0: -15.0, 16: 2.0, 1: -16.0}),
    "Q5_1": (half(1) + half(5) + struct.pack("<I", 1) + bytes([0x21, *[0] * 15]), {0: 22.0, 16: 7.0, 1: 5.0}),
    # d = 1, dmin = 2; scale 0 is 3, minimum 0 is 4, scale 4 is (2 | 1 << 4), minimum 4 is (1 | 2 << 4)
    "Q4_K": (
        half(1)
        + half(2)
        + bytes([3 | 1 << 6, 0, 0, 0, 4 | 2 << 6, 0, 0, 0, 0x12, 0, 0, 0])
        + bytes([0x75, *[0] * 63, 0x06, *[0] * 63]),
        {0: 3 * 5 - 2 * 4.0, 1: -8.0, 32: 0.0, 128: 18 * 6 - 2 * 33.0, 129: -66.0},
    ),
    # element 0: low nibble 3, upper bits 1 -> 19 - 32; element 64: high nibble of byte 0 is 2
    "Q6_K": (
        bytes([0x23, *[0] * 127]) + bytes([0b01, *[0] * 63]) + bytes([2, 0, 0, 0, 3, *[0] * 11]) + half(0.5),
        {0: 0.5 * 2 * (19 - 32), 1: 0.5 * 2 * -32, 64: 0.5 * 3 * (2 - 32), 16: 0.0},
    ),
    "BF16": (bytes([0x80, 0x3F]), {0: 1.0}),
    "F16": (half(-1.5), {0: -1.5}),
    "F32": (struct.pack("<f", 0.1), {0: float(np.float32(0.1))}),
}


@pytest.mark.parametrize("name", HAND)
def test_values_made_by_hand(name: str) -> None:
    raw, wanted = HAND[name]
    assert len(raw) == BY_NAME[name].nbytes
    found = dequantize(np.frombuffer(raw, np.uint8), BY_NAME[name])
    assert len(found) == BY_NAME[name].elements
    assert {i: float(found[i]) for i in wanted} == wanted


def write_sample(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """A file by the reference writer; returns the values its tensors stand for."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_int64("a.int", -5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "", "\U0001f600"])
    writer.add_array("tokenizer.ggml.scores", [1.5, -2.0])
    writer.add_array("flags", [True, False])
    plain = rng.normal(size=(3, 256)).astype(np.float32)
    wanted = {"f32": plain, "f16": plain.astype(np.float16).astype(np.float32)}
    writer.add_tensor("f32", plain)
    writer.add_tensor("f16", plain.astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.BF16):
        packed = gguf.quantize(plain, kind)
        writer.add_tensor(kind.name, packed, raw_dtype=kind)
        wanted[kind.name] = gguf.dequantize(packed, kind).reshape(plain.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


def test_a_file_of_the_reference_writer(tmp_path: Path) -> None:
    wanted = write_sample(tmp_path / "x.gguf")
    file = GGUFFile(tmp_path / "x.gguf")
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["a.float"] == 0.5
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.int"] == -5
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é", "", "\U0001f600"]
    assert file.metadata["tokenizer.ggml.scores"] == [1.5, -2.0]
    assert file.metadata["flags"] == [True, False]
    assert set(file) == set(wanted)
    for name, values in wanted.items():
        found = file.read(name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(name: str = "t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(shape))
        + b"".join(struct.pack("<Q", n) for n in shape)
        + struct.pack("<IQ", kind, offset)
    )


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def gguf_bytes(
    pairs: list[bytes] = (),  # type: ignore[assignment]
    tensors: list[bytes] = (),  # type: ignore[assignment]
    data: int = 128,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    n_tensors, n_pairs = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + b"".join([*pairs, *tensors])
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


U32, STR, ARR = 4, 8, 9
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "begins with b''"),
    "not gguf": (b"PK\3\4" * 10, "begins with"),
    "version 1": (gguf_bytes(version=1), "version 1: this reader has 2 and 3"),
    "big-endian": (gguf_bytes(version=3 << 24), "it is big-endian"),
    "ends in the header": (b"GGUF\3\0", "the version needs 4 bytes"),
    "absurd tensor count": (gguf_bytes(counts=(2**60, 0)), "1,152,921,504,606,846,976 tensors needs"),
    "absurd metadata count": (gguf_bytes(counts=(0, 2**63)), "metadata entries needs"),
    "absurd string": (gguf_bytes([struct.pack("<Q", 2**50)]), "a metadata key needs"),
    "absurd array": (gguf_bytes([pair("a", ARR, struct.pack("<IQ", U32, 2**62))]), "elements of metadata 'a'"),
    "unknown metadata type": (gguf_bytes([pair("a", 77, b"")]), "metadata 'a' has the unknown type 77"),
    "unknown element type": (
        gguf_bytes([pair("a", ARR, struct.pack("<IQ", 77, 1))]),
        "metadata 'a' has the unknown type 77",
    ),
    "deep arrays": (
        gguf_bytes([pair("a", ARR, struct.pack("<IQ", ARR, 1) * 50 + struct.pack("<IQ", U32, 0))]),
        "nests arrays deeper",
    ),
    "a truth value of 2": (gguf_bytes([pair("a", 7, b"\2")]), "a truth value is 0 or 1"),
    "not utf-8": (gguf_bytes([pair("a", STR, struct.pack("<Q", 1) + b"\xff")]), "metadata 'a' is not UTF-8"),
    "key twice": (gguf_bytes([pair("a", U32, b"\0" * 4)] * 2), "metadata 'a' stands there twice"),
    "tensor twice": (gguf_bytes(tensors=[tensor()] * 2), "tensor 't' stands there twice"),
    "no dimensions": (gguf_bytes(tensors=[tensor(shape=())]), "tensor 't' has 0 dimensions"),
    "too many dimensions": (gguf_bytes(tensors=[tensor(shape=(1,) * 5)]), "tensor 't' has 5 dimensions"),
    "unread format": (gguf_bytes(tensors=[tensor(kind=10)]), "tensor 't' is in format Q2_K, this reader has F32"),
    "unknown format": (gguf_bytes(tensors=[tensor(kind=999)]), "tensor 't' is in format number 999"),
    "part of a block": (gguf_bytes(tensors=[tensor(shape=(33,), kind=8)]), "not whole Q8_0 blocks of 32"),
    "absurd shape": (gguf_bytes(tensors=[tensor(shape=(2**32, 2**32))]), "absurd shape"),
    "cut off": (gguf_bytes(tensors=[tensor()], data=127), "tensor 't' needs bytes .* cut off"),
    "too large": (gguf_bytes(tensors=[tensor(shape=(2**40,))]), "tensor 't' needs bytes"),
    "far offset": (gguf_bytes(tensors=[tensor(offset=2**63)]), "tensor 't' needs bytes"),
    "overlap": (gguf_bytes(tensors=[tensor("a"), tensor("b", offset=96)], data=512), "'b' .* overlaps 'a'"),
    "unaligned": (gguf_bytes(tensors=[tensor(offset=8)]), "tensor 't' begins at 8, not a multiple of 32"),
    "bad alignment": (
        gguf_bytes([pair("general.alignment", U32, struct.pack("<I", 0))]),
        "general.alignment is 0",
    ),
    "alignment is text": (gguf_bytes([pair("general.alignment", STR, text("x"))]), "general.alignment is 'x'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_with_what_was_expected(case: str, tmp_path: Path) -> None:
    content, message = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message) as caught:
        GGUFFile(path)
    assert "broken.gguf" in str(caught.value)


def test_the_builder_of_broken_files_builds_whole_ones(tmp_path: Path) -> None:
    """Else the cases above could fail for another reason than their own."""
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes([pair("a", U32, struct.pack("<I", 7))], [tensor()]))
    file = GGUFFile(path)
    assert file.metadata == {"a": 7}
    np.testing.assert_array_equal(file.read("t"), np.zeros(32, np.float32))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_does_anything_but_load_or_raise_load_error(data: st.DataObject, tmp_path: Path) -> None:
    valid = tmp_path / "valid.gguf"
    if not valid.exists():
        write_sample(valid)
    raw = bytearray(valid.read_bytes())
    header = raw.index(b"BF16") + 64  # most mutations belong in the header
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header))
        replacement = data.draw(st.one_of(st.binary(min_size=1, max_size=1), st.sampled_from([b"\xff" * 8, b"\0" * 8])))
        raw[at : at + len(replacement)] = replacement
    raw = raw[: data.draw(st.sampled_from([len(raw), data.draw(st.integers(0, len(raw)))]))]
    path = tmp_path / "mutated.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        file = GGUFFile(path)
        with np.errstate(all="ignore"):
            for name in file:
                file.read(name)
    except LoadError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2_000_000
