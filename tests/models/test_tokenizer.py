"""The pure-Python tokenizer against Hugging Face's `tokenizers`: same ids, same text back."""

import json
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import smollm2_vocabulary
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import minillm
from minillm.models.bpe import ByteLevelBPE
from minillm.models.byte_alphabet import byte_alphabet
from minillm.models.pretokenize import split_digits_then_gpt2, split_gpt2
from minillm.models.tokenizer import LibraryTokenizer, UnsupportedTokenizer, load_tokenizer

TINY = Path(minillm.__file__).parent / "assets" / "models" / "tiny" / "tokenizer.json"

TEXTS = [
    "",
    "a",
    "Hello, world!",
    "I'll say we've done what they're doing; it's John's, isn't it? 'tis 'S 'LL ''s",
    "3.14159 and 1,234,567 in 2026, 50% of $1.00; x1y2z3",
    "½ ⅔ Ⅷ ② ٣٤٥ 五 ๑๒",
    "naïve café Ångström Łódź straße ﬁne — “quoted” ‘text’ …",
    "e\u0301 a\u0308 \u0301lone \u20dd marks n\u0303\u0303",
    "今天天气很好。東京タワー 한국어 ไทย हिन्दी العربية עברית",
    "👨‍👩‍👧‍👦 👍🏽 🇫🇷 🏳️‍🌈 ❤️ 😀😀",
    "  two   three    four\u00a0nbsp\u3000wide \u2003em\u200bzero\u202fnarrow",
    "a  b", "a   ", "   a", " ", "  ", " 5", "  5", "5  ", "a 5  6", " \u00a0x", "\u00a0 x",
    "tabs\tand\t\tmore\t \tmixed",
    "line\nline\n\nline\r\nline\n   indented\n\n\n",
    "\n\n  \n x \n",
    "".join(map(chr, range(0x00, 0x21))) + "\x7f\x80\x85\x9f",
    "\x1c\x1d\x1e\x1f a\x1cb",
    "\ufeffbom \ufffd \uffff \U0010ffff \U000e0001",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # ok\n",
    "https://example.org/a?b=c&d=%20#e",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <|im_start",
    "a" * 500 + "ab" * 300,
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓀁 🜁",
]  # fmt: skip

# Python, `tokenizers` and a browser's Python ship different Unicode versions: a character that
# Unicode 14 (Python 3.11) does not assign may be a letter to one and nothing to another.
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"])
ANY_TEXT = st.text(
    st.one_of(
        ASSIGNED,
        st.sampled_from(" \n\t'\u00a0\u3000\x1c\x85-_.5½aé\u0301中👍\u200d"),
        st.sampled_from(["'s", "'ll", "  ", " \n"]).map(str),
    ).map(lambda part: part[0]),
    max_size=60,
) | st.lists(
    st.sampled_from(["'s", "'ll", "'re", " ", "  ", "\n", "the", " of", "é", "中文", "7", "½", "'", "👍🏽", "\u00a0"]),
    max_size=20,
).map("".join)


class Pair(NamedTuple):
    """Our tokenizer and the reference on the same vocabulary."""

    ours: ByteLevelBPE
    reference: Any

    def reference_ids(self, text: str, *, allow_special: bool = False) -> list[int]:
        self.reference.encode_special_tokens = not allow_special
        ids: list[int] = self.reference.encode(text, add_special_tokens=False).ids
        return ids


def _pair(name: str) -> Pair:
    if name == "tiny":
        return Pair(ByteLevelBPE.from_tokenizer_json(TINY), tokenizers.Tokenizer.from_file(str(TINY)))
    if name == "smollm2":
        ours = ByteLevelBPE.from_gguf_metadata(smollm2_vocabulary.gguf_metadata())  # the reference reads JSON
        reference = tokenizers.Tokenizer.from_str(json.dumps(smollm2_vocabulary.tokenizer_json()))
        return Pair(ours, reference)
    data = smollm2_vocabulary.tokenizer_json()  # SmolLM2's merges without its digit rule: GPT-2's own pattern
    data["pre_tokenizer"] = data["pre_tokenizer"]["pretokenizers"][1]
    return Pair(ByteLevelBPE.from_tokenizer_json(data), tokenizers.Tokenizer.from_str(json.dumps(data)))


@pytest.fixture(scope="module", params=["tiny", "smollm2", "gpt2-pattern"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return _pair(request.param)


@pytest.fixture(scope="module")
def tiny() -> ByteLevelBPE:
    return ByteLevelBPE.from_tokenizer_json(TINY)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_equal_the_reference(pair: Pair, text: str) -> None:
    for allow_special in (False, True):
        ids = pair.ours.encode(text, allow_special=allow_special)
        assert ids == pair.reference_ids(text, allow_special=allow_special)
        for skip_special in (False, True):
            expected = pair.reference.decode(ids, skip_special_tokens=skip_special)
            assert pair.ours.decode(ids, skip_special=skip_special) == expected


@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT)
def test_any_text_has_the_ids_of_the_reference(pair: Pair, text: str) -> None:
    assert pair.ours.encode(text) == pair.reference_ids(text)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_every_character_has_the_class_of_the_reference(step: int) -> None:
    """Each assigned character doubled and among spaces: whether it is a letter, a digit or a space."""
    pair = _pair("tiny")
    for start in [*range(0, 0x20000, 0x1000), 0xE0000]:
        dense = 1 if start < 0x1000 or 0x2000 <= start < 0x4000 else step
        block = [chr(c) for c in range(start, start + 0x1000, dense)]
        text = "".join(f"a{c}{c} {c}b  " for c in block if unicodedata.category(c) not in ("Cs", "Cn"))
        assert pair.ours.encode(text) == pair.reference_ids(text), f"in U+{start:04X} to U+{start + 0xFFF:04X}"


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_text_comes_back(tiny: ByteLevelBPE, text: str) -> None:
    assert tiny.decode(tiny.encode(text)) == text
    assert b"".join(map(tiny.token_bytes, tiny.encode(text))) == text.encode()
    assert "".join(split_gpt2(text)) == text == "".join(split_digits_then_gpt2(text))


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 4095), max_size=20))
def test_any_ids_decode_as_the_reference_does(pair: Pair, ids: list[int]) -> None:
    for skip in (False, True):
        assert pair.ours.decode(ids, skip_special=skip) == pair.reference.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text("a '\n5é", max_size=30))
def test_the_fast_path_for_ascii_is_the_scanner(text: str) -> None:
    plain = text.replace("é", "e")
    padded = list(split_gpt2(plain + "\n中"))  # not ASCII, so scanned
    assert [*padded[:-1], "x"] == list(split_gpt2(plain + "\nx"))


def test_special_tokens_are_recognised_only_when_asked(tiny: ByteLevelBPE) -> None:
    text = "<|im_start|>user"
    user, template = tiny.encode(text), tiny.encode(text, allow_special=True)
    assert not any(tiny.is_special(id) for id in user)
    assert tiny.is_special(template[0])
    assert not tiny.is_special(template[-1])
    assert tiny.decode(user) == text
    assert tiny.decode(template) == "user"
    assert tiny.decode(template, skip_special=False) == text
    assert tiny.token_bytes(template[0]) == b"<|im_start|>"


def test_added_tokens_that_are_not_special_are_always_recognised() -> None:
    data = json.loads(TINY.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    data["added_tokens"] += [
        {"id": 4096, "content": "<think>", **flags},
        {"id": 4097, "content": "<think>ing", **flags},
    ]
    pair = Pair(ByteLevelBPE.from_tokenizer_json(data), tokenizers.Tokenizer.from_str(json.dumps(data)))
    for text in ("a<think>b", "<think>ing<think>in<|im_end|>", "<thin"):
        for allow in (False, True):
            ids = pair.ours.encode(text, allow_special=allow)
            assert ids == pair.reference_ids(text, allow_special=allow)
            assert pair.ours.decode(ids) == pair.reference.decode(ids)


def test_the_byte_alphabet_is_a_bijection() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == 0x20


def test_tokens_at_the_ends_come_from_the_metadata() -> None:
    smollm2 = ByteLevelBPE.from_gguf_metadata(smollm2_vocabulary.gguf_metadata())
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.adds_bos) == (1, frozenset({2}), False)
    assert smollm2.vocab_size == 49152


def test_a_long_word_is_merged_in_little_more_than_linear_time(tiny: ByteLevelBPE) -> None:
    """A quadratic merge takes minutes on this text, this one a fraction of a second."""
    text = "senate" * 30_000
    assert tiny.decode(tiny.encode(text)) == text


def test_half_a_surrogate_pair_is_refused_with_its_place(tiny: ByteLevelBPE) -> None:
    with pytest.raises(ValueError, match="U\\+D83D"):
        tiny.encode("ok \ud83d")


def test_an_id_outside_the_vocabulary_is_refused(tiny: ByteLevelBPE) -> None:
    for id in (-1, 4096):
        with pytest.raises(ValueError, match=f"{id} is outside the vocabulary of 4096"):
            tiny.decode([id])


def _changed(part: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(TINY.read_text())
    *path, last = part.split(".")
    node = data
    for key in path:
        node = node[key]
    node[last] = value
    return data


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("model.type", "Unigram", "Unigram"),
        ("model.byte_fallback", True, "byte_fallback"),
        ("model.ignore_merges", True, "ignore_merges"),
        ("model.dropout", 0.1, "dropout"),
        ("normalizer", {"type": "NFC"}, "NFC"),
        ("decoder", {"type": "Metaspace"}, "Metaspace"),
        ("decoder", None, "decoder"),
        ("post_processor", {"type": "TemplateProcessing"}, "TemplateProcessing"),
        ("pre_tokenizer", {"type": "Whitespace"}, "Whitespace"),
        ("pre_tokenizer", None, "pre_tokenizer null"),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}, "add_prefix_space"),
    ],
)
def test_what_is_not_implemented_is_named(part: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=named):
        ByteLevelBPE.from_tokenizer_json(_changed(part, value))


@pytest.mark.parametrize(
    ("key", "value", "error", "named"),
    [
        ("model", "llama", UnsupportedTokenizer, "'llama'"),
        ("pre", "llama-bpe", UnsupportedTokenizer, "'llama-bpe'"),
        ("pre", None, UnsupportedTokenizer, "None"),
        ("token_type", [1, 1], ValueError, "49152 entries"),
        ("merges", ["a b c"], ValueError, "merge 0"),
    ],
)
def test_gguf_metadata_that_does_not_fit_is_named(key: str, value: Any, error: type[Exception], named: str) -> None:
    metadata = smollm2_vocabulary.gguf_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(error, match=named):
        ByteLevelBPE.from_gguf_metadata(metadata)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(TINY.read_bytes()[:5000])
    with pytest.raises(ValueError, match="not valid JSON"):
        load_tokenizer(tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="a JSON object is needed"):
        load_tokenizer(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        load_tokenizer(path)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        load_tokenizer(tmp_path / "absent")


def test_other_kinds_go_through_the_library(tmp_path: Path) -> None:
    """A SentencePiece-like vocabulary with a template that puts BOS first, as in Llama 2."""
    from tokenizers import decoders, models, normalizers, processors

    vocab = {"<s>": 0, "</s>": 1, "▁": 2, "a": 3, "b": 4, "▁a": 5} | {f"<0x{b:02X}>": 6 + b for b in range(256)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}')
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (0, frozenset({1}), True)
    assert tokenizer.vocab_size == 262
    text = "b a é</s>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert tokenizer.encode("a</s>", allow_special=True)[-1] == 1
    assert tokenizer.is_special(1)
    with pytest.raises(ValueError, match="999"):
        tokenizer.token_bytes(999)
