"""Reads a `tokenizer.json` or GGUF metadata into the arguments of `ByteLevelBPE`; strict.

Whatever would change an id and is not implemented here is an error that names it, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from minillm.loaders.files import read_json
from minillm.models.byte_alphabet import from_alphabet
from minillm.models.pretokenize import Split, split_digits_then_gpt2, split_gpt2


class UnsupportedTokenizer(ValueError):
    """A tokenizer that the pure-Python code does not implement; the message names the part."""


# GGUF's `tokenizer.ggml.pre` -> how words are cut. llama.cpp has about 50 more.
_GGUF_SPLITS: dict[str, Split] = {"gpt-2": split_gpt2, "smollm": split_digits_then_gpt2}
_GGUF_CONTROL, _GGUF_USER_DEFINED = 3, 4
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
_Kind = TypeVar("_Kind", dict[str, Any], list[Any], str, int)


def parse_tokenizer_json(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ByteLevelBPE` from Hugging Face's `tokenizer.json`, given as path or as object.

    With a path, `generation_config.json`, `config.json` and `tokenizer_config.json` beside it name
    the tokens at the start and the end; an object alone has neither.

    Raises:
        UnsupportedTokenizer: it is no byte-level BPE, or has a part that is not implemented.
        ValueError: the file is damaged.
    """
    where, data = "tokenizer.json", source
    folder: Path | None = None
    if not isinstance(data, Mapping):
        where, folder = str(source), Path(str(source)).parent
        data = read_json(Path(str(source)))
    if not isinstance(data.get("model"), dict):
        raise ValueError(f"{where} has no object 'model': it is not a tokenizer.json")
    model: Mapping[str, Any] = data["model"]
    added = _added_tokens(data.get("added_tokens"), where)
    _refuse_unimplemented(data, model, added.values(), where)
    vocab = _need(model.get("vocab"), dict, f"{where}: model.vocab")
    for token, id in vocab.items():
        _need(id, int, f"{where}: the id of token {token!r}")
    names = {id: token for token, id in vocab.items()} | {id: e["content"] for id, e in added.items()}
    if sorted(names) != list(range(len(names))):
        raise ValueError(f"{where}: the ids of {len(names)} tokens are not 0 to {len(names) - 1}")
    special = {id: e["content"] for id, e in added.items() if e.get("special")}
    plain = {id: e["content"] for id, e in added.items() if not e.get("special")}
    ids = {content: id for id, content in special.items()}
    ends = read_ends(folder, ids, len(names))
    return {
        "tokens": _bytes_of_tokens([names[id] for id in range(len(names))], set(added), where),
        "merges": _merge_ids(model.get("merges"), vocab, where),
        "split": _split_of(data.get("pre_tokenizer"), where),
        "special": special,
        "added": plain,
        **ends,
    }


def parse_gguf_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ByteLevelBPE` from the `tokenizer.ggml.*` keys of a GGUF file.

    Raises:
        UnsupportedTokenizer: the model or the pre-tokenizer is not implemented.
        ValueError: a key is missing, or the lists do not fit each other.
    """
    prefix = "tokenizer.ggml."
    kind = metadata.get(prefix + "model")
    if kind != "gpt2":
        raise UnsupportedTokenizer(f"{prefix}model is {kind!r:.80}; only 'gpt2' (byte-level BPE) is implemented")
    pre = metadata.get(prefix + "pre")
    if not isinstance(pre, str) or pre not in _GGUF_SPLITS:
        known = ", ".join(sorted(_GGUF_SPLITS))
        raise UnsupportedTokenizer(
            f"{prefix}pre is {pre!r:.80}; implemented are {known}. Load the model from its Hugging Face "
            "directory, whose tokenizer.json the package 'tokenizers' reads"
        )
    for key in ("tokens", "merges", "token_type"):
        if prefix + key not in metadata:
            raise ValueError(f"the GGUF metadata has no {prefix}{key}: the file has no complete tokenizer")
    names = [
        _need(n, str, f"an entry of {prefix}tokens")
        for n in _need(metadata[prefix + "tokens"], list, prefix + "tokens")
    ]
    types = _need(metadata[prefix + "token_type"], list, prefix + "token_type")
    if len(types) != len(names):
        raise ValueError(f"{prefix}tokens has {len(names)} entries, {prefix}token_type {len(types)}")
    special = {id: names[id] for id, kind in enumerate(types) if kind == _GGUF_CONTROL}
    added = {id: names[id] for id, kind in enumerate(types) if kind == _GGUF_USER_DEFINED}
    for id, text in {**special, **added}.items():
        _check_added(id, text, "the GGUF metadata")
    vocab = {name: id for id, name in enumerate(names) if id not in special and id not in added}
    ends = {key: metadata.get(f"{prefix}{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    ids = {key: _id(value, f"{prefix}{key}_token_id", len(names)) for key, value in ends.items() if value is not None}
    return {
        "tokens": _bytes_of_tokens(names, special.keys() | added.keys(), "the GGUF metadata"),
        "merges": _merge_ids(metadata[prefix + "merges"], vocab, "the GGUF metadata"),
        "split": _GGUF_SPLITS[pre],
        "special": special,
        "added": added,
        "bos_id": ids.pop("bos", None),
        "eos_ids": frozenset(ids.values()),
        "adds_bos": bool(metadata.get(prefix + "add_bos_token", False)),
    }


def read_ends(folder: Path | None, special_ids: Mapping[str, int], vocab_size: int) -> dict[str, Any]:
    """`bos_id`, `eos_ids` and `adds_bos` of a Hugging Face directory.

    EOS is what `generation_config.json` says, else `config.json`, else the EOS token of
    `tokenizer_config.json`. BOS is the token of `tokenizer_config.json`, else the id in the others.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        path = folder / name if folder is not None else None
        found[name] = read_json(path) if path is not None and path.exists() else {}
    texts = found["tokenizer_config.json"]
    bos, eos = (_special_id(texts.get(f"{end}_token"), special_ids) for end in ("bos", "eos"))
    eos_ids: list[int] = [] if eos is None else [eos]
    for name in ("config.json", "generation_config.json"):  # the later one wins
        ids = found[name].get("eos_token_id")
        if ids is not None:
            eos_ids = [_id(id, f"{folder}/{name}: eos_token_id", vocab_size) for id in _as_list(ids)]
        if bos is None and found[name].get("bos_token_id") is not None:
            bos = _id(found[name]["bos_token_id"], f"{folder}/{name}: bos_token_id", vocab_size)
    adds_bos = bos is not None and bool(texts.get("add_bos_token", False))
    return {"bos_id": bos, "eos_ids": frozenset(eos_ids), "adds_bos": adds_bos}


def _need(value: Any, kind: type[_Kind], what: str) -> _Kind:
    """``value``, which has to be a ``kind``; what is none, is named."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r:.80}, {_KINDS[kind]} is needed: the file is damaged")
    return value


def _id(value: Any, what: str, vocab_size: int) -> int:
    if not 0 <= _need(value, int, what) < vocab_size:
        raise ValueError(f"{what} is {value}, the vocabulary has the ids 0 to {vocab_size - 1}")
    return int(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _added_tokens(entries: Any, where: str) -> dict[int, dict[str, Any]]:
    """Added tokens by id, each with a text."""
    found = {}
    for entry in _need(entries or [], list, f"{where}: added_tokens"):
        entry = _need(entry, dict, f"{where}: an added token")
        id = _need(entry.get("id"), int, f"{where}: the id of an added token")
        _check_added(id, entry.get("content"), where)
        found[id] = entry
    return found


def _check_added(id: int, text: Any, where: str) -> None:
    if not _need(text, str, f"{where}: added token {id}"):
        raise ValueError(f"{where}: added token {id} is empty, so it would stand between any two characters")


def _special_id(entry: Any, special_ids: Mapping[str, int]) -> int | None:
    """Id of a token that `tokenizer_config.json` gives as text or as an object with `content`."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return special_ids.get(text) if isinstance(text, str) else None


def _refuse_unimplemented(
    data: Mapping[str, Any], model: Mapping[str, Any], added: Iterable[Mapping[str, Any]], where: str
) -> None:
    """Raise for every part of a `tokenizer.json` that could change an id and is not implemented."""
    if model.get("type") != "BPE":
        raise UnsupportedTokenizer(f"{where}: model type {model.get('type')!r}, only 'BPE' is implemented")
    for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise UnsupportedTokenizer(f"{where}: model.{key} = {model[key]!r} is not implemented")
    if model.get("ignore_merges"):
        raise UnsupportedTokenizer(f"{where}: model.ignore_merges = true is not implemented")
    for part, allowed in (("normalizer", ()), ("post_processor", ("ByteLevel",)), ("decoder", ("ByteLevel",))):
        kind = _need(data.get(part) or {}, dict, f"{where}: {part}").get("type")
        if kind not in allowed and (kind is not None or part == "decoder"):
            raise UnsupportedTokenizer(f"{where}: {part} of type {kind!r} is not implemented")
    for entry in added:
        for flag in ("single_word", "lstrip", "rstrip"):
            if entry.get(flag):
                raise UnsupportedTokenizer(
                    f"{where}: added token {entry['content']!r} has {flag} = true, which is not implemented"
                )


def _split_of(pre: Any, where: str) -> Split:
    """The word splitter that a `pre_tokenizer` object describes."""
    what = f"{where}: pre_tokenizer"
    parts = [] if pre is None else [_need(pre, dict, what)]
    if pre is not None and pre.get("type") == "Sequence":
        parts = [_need(part, dict, what) for part in _need(pre.get("pretokenizers"), list, f"{what}.pretokenizers")]
    kinds = [part.get("type") for part in parts]
    if kinds and kinds[-1] == "ByteLevel":
        last = parts[-1]
        plain = last.get("use_regex", True) and not last.get("add_prefix_space", True)
        if plain and kinds == ["ByteLevel"]:
            return split_gpt2
        if plain and kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
            return split_digits_then_gpt2
    raise UnsupportedTokenizer(
        f"{where}: pre_tokenizer {json.dumps(pre)[:300]} is not implemented; known are ByteLevel "
        "(add_prefix_space false, use_regex true) alone or after Digits (individual_digits true)"
    )


def _bytes_of_tokens(names: list[str], added: set[int], where: str) -> list[bytes]:
    """Raw bytes by id: added tokens are text, all others are written in the byte alphabet."""
    tokens = []
    for id, name in enumerate(names):
        try:
            tokens.append(name.encode("utf-8") if id in added else from_alphabet(name))
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: token {id} is {name!r}, which is no Unicode text ({error.reason})") from error
        except KeyError as error:
            raise UnsupportedTokenizer(
                f"{where}: token {id} is {name!r}, and {error} is not in the byte alphabet: "
                "this is not a byte-level vocabulary"
            ) from error
    return tokens


def _merge_ids(merges: Any, vocab: Mapping[str, int], where: str) -> list[tuple[int, int]]:
    """Pairs of ids, from pairs of tokens or from `"left right"`."""
    pairs = []
    for rank, merge in enumerate(_need(merges, list, f"{where}: the merges")):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        try:
            left, right = parts
            pairs.append((vocab[left], vocab[right]))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{where}: merge {rank} is {merge!r}, expected two tokens of the vocabulary") from error
    return pairs
