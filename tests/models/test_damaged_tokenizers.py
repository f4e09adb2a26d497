"""Tokenizer files with any one part missing, of another type or out of range: a `LoadError` with the file's name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minillm.loaders.files import LoadError
from minillm.models.byte_alphabet import byte_alphabet
from minillm.models.load import LoadedModel

ABSENT = object()
BAD = [ABSENT, None, True, -1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "\ud800", [], [1], ["a"], {}]
ENDS = {"eos_token_id": [260], "bos_token_id": 259}
TOKENS = ["Ġh", "hi", "<added>", "<s>", "</s>"]
FILES: dict[str, Any] = {
    "tokenizer.json": {
        "added_tokens": [
            {"id": id, "content": TOKENS[id - 256], "special": id > 258, "lstrip": False} for id in (258, 259, 260)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": {token: id for id, token in enumerate([*byte_alphabet(), *TOKENS])},
            "merges": [["Ġ", "h"], "h i"],
        },
    },
    "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}"},
    "config.json": ENDS,
    "generation_config.json": ENDS,
}
METADATA = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*byte_alphabet(), *TOKENS],
    "tokenizer.ggml.token_type": [1] * 258 + [4, 3, 3],
    "tokenizer.ggml.merges": ["Ġ h", "h i"],
    "tokenizer.ggml.bos_token_id": 259,
    "tokenizer.ggml.eos_token_id": 260,
    "tokenizer.ggml.eot_token_id": 260,
    "tokenizer.chat_template": "{{ bos_token }}",
}
LISTS = [
    ["a"] * 261,
    [1] * 261,
    [[]] * 261,
    [None] * 261,
    [""] * 261,
    ["<s>"] * 261,
    ["h i"],
    ["h  i"],
    [["h", "i", "j"]],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts; of a long object a few."""
    yield path
    parts = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, part in parts if len(parts) < 20 else parts[::60]:
        yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = copy.deepcopy(value)
    node = value
    for key in path[:-1]:
        node = node[key]
    if new is ABSENT:
        del node[path[-1]]
    else:
        node[path[-1]] = new
    return value


def opens(path: Path, metadata: dict[str, Any] | None = None) -> bool:
    """Whether the model's tokenizer and template can be used; if not, that it is said as it should be."""
    model = LoadedModel("x", path, None, None, metadata)  # type: ignore[arg-type]
    message = ""
    try:
        tokenizer = model.tokenizer()
        assert tokenizer.decode(tokenizer.encode("hi 5 é")) != ""
        model.chat_template()
    except LoadError as error:
        message = str(error)
    assert not message or str(path) in message
    assert len(message) < 2000 + len(str(path))
    return not message


@pytest.mark.parametrize("name", FILES)
def test_every_part_of_a_directorys_files(name: str, tmp_path: Path) -> None:
    for other, content in FILES.items():
        (tmp_path / other).write_text(json.dumps(content))
    assert opens(tmp_path)
    refused = 0
    for path in places(FILES[name]):
        for bad in BAD:
            if bad is not ABSENT or path:
                (tmp_path / name).write_text(json.dumps(changed(FILES[name], path, bad)))
                refused += not opens(tmp_path)
    assert refused > 10
    for raw in (b"", b"\xff", b"{", b"[" * 200_000, b"1" * 5000, b'{"a": 1, "a": 2}'):
        (tmp_path / name).write_bytes(raw)
        assert not opens(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert not opens(tmp_path)


@pytest.mark.parametrize("key", METADATA)
def test_every_key_of_a_gguf_file(key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert opens(path, dict(METADATA))
    for bad in [*BAD, *LISTS]:
        metadata = changed(METADATA, (key,), bad)
        opens(path, metadata)


def test_an_empty_added_token_is_refused(tmp_path: Path) -> None:
    data = changed(FILES["tokenizer.json"], ("added_tokens", 0, "content"), "")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(LoadError, match="added token 258 is empty"):
        LoadedModel("x", tmp_path, None, None).tokenizer()  # type: ignore[arg-type]
