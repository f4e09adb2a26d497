"""The catalogue: published counts, data sheets, and the builder against the library that defines the configs."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minillm import catalog
from minillm.catalog.accelerator import parse_accelerator
from minillm.catalog.source import CatalogError, Source
from minillm.costs import CostError, size_bytes

MODELS = [slug for slug, entry in catalog.models().items() if entry.published_parameters]
ACCELERATORS = list(catalog.accelerators())


@pytest.mark.parametrize("slug", MODELS)
def test_parameters_equal_the_published_count(slug: str) -> None:
    model = catalog.model(slug)
    assert model.parameters == model.published_parameters
    assert sum(model.geometry.parts.values()) == model.parameters


@pytest.mark.parametrize("entry", [*catalog.models().values(), *catalog.accelerators().values()], ids=lambda e: e.slug)
def test_every_entry_says_where_it_is_from(entry: Any) -> None:
    if entry.slug == "tiny":
        return  # its config lies beside its weights
    assert isinstance(entry.source, Source)
    assert datetime.date(2026, 1, 1) <= entry.source.checked <= datetime.datetime.now(tz=datetime.UTC).date()
    assert entry.title
    assert entry.source.how


def test_8b_by_parts() -> None:
    parts = catalog.model("llama-3.1-8b").geometry.parts
    billions = {name: round(count / 1e9, 3) for name, count in parts.items() if count}
    assert billions == {"embedding": 0.525, "attention": 1.342, "mlp": 5.637, "norms": 0.0, "head": 0.525}


@pytest.mark.parametrize(("slug", "gb", "gib"), [("llama-3.1-8b", 16.06, 14.96), ("llama-3-70b", 141.1, 131.4)])
def test_weights_in_gb_and_gib(slug: str, gb: float, gib: float) -> None:
    size = catalog.model(slug).weight_bytes("bf16")
    assert size / 1e9 == pytest.approx(gb, rel=5e-4)
    assert size / 2**30 == pytest.approx(gib, rel=5e-4)


def test_7b_in_four_formats() -> None:
    # The outline rounds to 7.0 billion parameters, the model has 6.74.
    parameters = catalog.model("llama-2-7b").parameters
    sizes = [size_bytes(parameters, d) * 7 / 6.738415616 / 1e9 for d in ("fp32", "fp16", "int8", "int4")]
    assert sizes == pytest.approx([28, 14, 7, 3.5])


def test_memory_of_experts_is_of_all_of_them() -> None:
    model = catalog.model("deepseek-v3")
    assert model.parameters * 0.58 / 1e9 == pytest.approx(389, abs=0.5)
    assert model.active_parameters == 37_552_297_472
    assert size_bytes(model.parameters, "fp8") / 1e9 == pytest.approx(671, abs=0.5)


def test_deepseek_v3_as_it_is_shipped() -> None:
    """The files have 688,586,727,753 bytes, with a layer for multi-token prediction that the sizes leave out.

    That layer has a layer's experts and attention in fp8, tables of its own and a projection, in bf16.
    """
    model = catalog.model("deepseek-v3")
    parts = model.geometry.parts
    sparse = model.layers - 3
    extra = sum(parts[name] for name in ("experts", "shared_experts")) / sparse + parts["attention"] / model.layers
    extra += 2 * (parts["embedding"] + parts["head"] + 2 * 7168 * 7168)
    assert model.weight_bytes() + extra == pytest.approx(688_586_727_753, rel=5e-4)  # block scales are not counted


def test_gpt_oss_as_it_is_shipped() -> None:
    """Experts' matrices in MXFP4, all else in bf16: the files have 13,761,316,904 bytes with their headers."""
    model = catalog.model("gpt-oss-20b")
    assert 0 < 13_761_316_904 - model.weight_bytes() < 100_000
    assert model.weight_bytes() == model.weight_bytes("bf16", experts="mxfp4")
    assert model.weight_bytes() < 0.34 * model.weight_bytes("bf16")
    assert model.active_parameters - 201_088 * 2880 == 3_608_307_264  # OpenAI's 3.6 billion leave the table out


@pytest.mark.parametrize(
    ("fields", "formats"),
    [
        ({"torch_dtype": "bfloat16"}, ("bf16", "bf16", "bf16")),
        ({"dtype": "float32"}, ("fp32", "fp32", "fp32")),
        ({}, ("bf16", "bf16", "bf16")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("bf16", "fp8", "fp8")),
        ({"quantization_config": {"quant_method": "mxfp4"}}, ("bf16", "bf16", "mxfp4")),
        (
            {"torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
            ("fp16", "int4_g128", "int4_g128"),
        ),
    ],
)
def test_sizes_use_the_format_of_the_published_files(fields: dict[str, Any], formats: tuple[str, str, str]) -> None:
    model = built(**fields)
    assert (model.native.rest, model.native.matrices, model.native.experts) == formats
    parts = model.geometry.parts
    matrices = parts["attention"] + parts["mlp"]
    size = size_bytes(matrices, formats[1]) + size_bytes(model.parameters - matrices, formats[0])
    assert model.weight_bytes() == size


def test_of_a_format_that_the_formulas_lack_only_its_own_sizes_are_refused() -> None:
    model = built(quantization_config={"quant_method": "exl2"})
    assert model.weight_bytes("bf16") == 2 * model.parameters
    with pytest.raises(CostError, match="do not know the format of the published weights: name one, such as bf16"):
        model.weight_bytes()


def test_quantizers_leave_tables_and_head_in_bf16() -> None:
    model = catalog.model("llama-3.1-8b")
    kept = model.geometry.parts["embedding"] + model.geometry.parts["head"] + model.geometry.parts["norms"]
    assert model.weight_bytes("int4") == (model.parameters - kept) / 2 + 2 * kept
    assert model.weight_bytes("q4_0") == size_bytes(model.parameters, "q4_0")


def test_attention_kinds() -> None:
    kinds = {slug: catalog.model(slug).attention_kind for slug in MODELS}
    assert kinds["llama-2-7b"] == "MHA"
    assert kinds["llama-3-8b"] == "GQA"
    assert kinds["deepseek-v3"] == "MLA"


def test_windows() -> None:
    windows = {slug: Counter(catalog.model(slug).geometry.windows) for slug in MODELS}
    assert windows["gemma-3-27b"] == {1024: 52, None: 10}
    assert windows["gpt-oss-20b"] == {128: 12, None: 12}
    assert windows["mistral-7b"] == {4096: 32}
    assert windows["qwen3-32b"] == {None: 64}
    # Gemma's global layers are the sixth, the twelfth ...
    assert [i for i, w in enumerate(catalog.model("gemma-3-27b").geometry.windows) if w is None][:2] == [5, 11]


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def built(**fields: Any) -> catalog.Model:
    return catalog.from_hf_config({name: v for name, v in {**LLAMA, **fields}.items() if v != "absent"})


def test_mistral_small_24b_head_size() -> None:
    model = built(
        model_type="mistral",
        hidden_size=5120,
        num_hidden_layers=40,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=32768,
        vocab_size=131072,
        sliding_window=None,
    )
    assert model.kv_bytes_per_token("bf16") == 163_840  # 5120 / 32 = 160 would give 204,800
    assert model.parameters == 23_572_403_200


def test_mixtral_8x7b_is_not_13_billion() -> None:
    model = built(
        model_type="mixtral",
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=32768,
        sliding_window=None,
    )
    assert model.parameters == 46_702_792_704
    assert model.active_parameters == pytest.approx(12.9e9, rel=0.005)


def test_glm_4_5_is_grouped_query() -> None:
    model = built(
        model_type="glm4_moe",
        hidden_size=5120,
        num_hidden_layers=92,
        num_attention_heads=96,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        n_routed_experts=160,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
        vocab_size=151552,
        use_qk_norm=True,
        attention_bias=True,
    )
    assert model.attention_kind == "GQA"
    assert model.kv_bytes_per_token("bf16") == 92 * 2 * 8 * 128 * 2
    assert model.parameters == pytest.approx(352.8e9, rel=0.002)


def test_gemma_3_12b_head_size() -> None:
    text = {
        **LLAMA,
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 1024,
        "vocab_size": 262208,
    }
    model = catalog.from_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {"depth": 1}})
    assert model.head_dim == 256  # 3840 / 16 is 240


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "deepseek_v4"}, "model_type 'deepseek_v4' is not known to the formulas"),
        ({"model_type": "absent"}, "model_type None is not known"),
        ({"model_type": "xlm-roberta"}, "is an encoder: it reads its whole input at once and has no KV cache"),
        ({"num_kv_shared_layers": 12}, "num_kv_shared_layers = 12, which the formulas do not know"),
        ({"layer_types": ["full_attention"] * 31 + ["linear_attention"]}, "layer_types has 'linear_attention'"),
        ({"layer_types": ["full_attention"]}, "a list of 32 entries is needed"),
        ({"num_hidden_layers": "absent"}, "needs the field num_hidden_layers, which is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": -4096}, "hidden_size is -4096"),
        ({"hidden_size": 4096.5}, "hidden_size is 4096.5"),
        ({"num_attention_heads": 30}, "needs the field head_dim, which is missing: hidden_size 4096 / 30 heads"),
        ({"num_key_value_heads": 7}, "num_key_value_heads is 7: 32 query heads do not share them evenly"),
        ({"model_type": "qwen3", "num_key_value_heads": 8}, "qwen3 needs the field head_dim"),
        ({"model_type": "mistral"}, "mistral needs the field num_key_value_heads"),
        ({"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "deepseek_v3"}, "deepseek_v3 needs the field kv_lora_rank"),
    ],
)
def test_what_is_not_known_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        built(**fields)


def test_explicit_head_dim_wins_and_multi_head_is_the_default() -> None:
    assert built(head_dim=64).head_dim == 64
    assert built().head_dim == 128
    assert built().kv_heads == 32


def test_indexer_of_sparse_attention_is_not_ignored() -> None:
    config = json.loads(Path(catalog.__path__[0], "models.json").read_text())["deepseek-v3"]["config"]
    with pytest.raises(CatalogError, match="index_topk = 2048, which the formulas do not know"):
        catalog.from_hf_config({**config, "index_topk": 2048})


TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 10,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {
    **MOE,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14, "num_key_value_heads": 6}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"model_type": "mistral", "sliding_window": 16},
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "qwen2"},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
        {"model_type": "qwen3", "attention_bias": True},
        {"model_type": "qwen3_moe", "num_experts": 4, **MOE},
        {"model_type": "gemma3_text", "sliding_window": 16},
        {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "glm4_moe", **SHARED, "use_qk_norm": True, "attention_bias": True},
        {"model_type": "deepseek_v3", **SHARED, **LATENT, "head_dim": None, "q_lora_rank": 20},
        {"model_type": "deepseek_v3", **SHARED, **LATENT, "head_dim": None, "q_lora_rank": None},
    ],
    ids=lambda c: c["model_type"],
)
def test_sizes_equal_those_of_the_reference_library(config: dict[str, Any]) -> None:
    """Parameters and windows of a small model of each type, as ``transformers`` builds it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {name: v for name, v in {**TINY, **config}.items() if name == "q_lora_rank" or v is not None}
    kind = fields.pop("model_type")
    theirs = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        reference = transformers.AutoModelForCausalLM.from_config(theirs)
    # The router's correction is a buffer there and a tensor of the checkpoint.
    corrections = [b for name, b in reference.named_buffers() if name.endswith("e_score_correction_bias")]
    ours = catalog.from_hf_config({"model_type": kind, **fields}).geometry
    assert ours.parameters == sum(t.numel() for t in [*reference.parameters(), *corrections])
    kinds = getattr(theirs, "layer_types", None)
    if kinds is not None:
        assert ["sliding_attention" if w else "full_attention" for w in ours.windows] == kinds
        assert {w for w in ours.windows if w} <= {theirs.sliding_window}


@pytest.mark.parametrize(
    ("slug", "bandwidth", "dense", "sparse", "ridge"),
    [
        ("h100-sxm", 3.35e12, 989, 1979, 295),
        ("h200-sxm", 4.8e12, 989, 1979, 206),
        ("a100-80gb-sxm", 2.039e12, 312, 624, 153),
        ("b200", 8e12, 2250, 4500, 281),
        ("h100-pcie", 2.0e12, 756.5, 1513, 378),
    ],
)
def test_accelerators(slug: str, bandwidth: float, dense: float, sparse: float, ridge: float) -> None:
    found = catalog.accelerator(slug)
    assert found.memory_bandwidth == bandwidth
    assert found.flops("bf16") / 1e12 == pytest.approx(dense, abs=0.5)
    assert found.flops("bf16", sparse=True) / 1e12 == pytest.approx(sparse, abs=0.5)
    assert round(found.ridge_flops_per_byte()) == ridge


def test_memory_of_an_h100() -> None:
    found = catalog.accelerator("h100-sxm")
    assert found.reported_memory_bytes is not None
    assert found.reported_memory_bytes / 2**30 == pytest.approx(79.65, abs=0.005)
    assert found.reported_memory_bytes / 1e9 == pytest.approx(85.52, abs=0.005)
    assert 8 * found.memory_bytes < 700e9


@pytest.mark.parametrize("slug", ACCELERATORS)
def test_the_driver_reports_at_least_the_data_sheet(slug: str) -> None:
    found = catalog.accelerator(slug)
    assert found.reported_memory_bytes is not None
    # A printed GB of capacity is close to a GiB, less what error correction takes.
    assert found.memory_bytes <= found.reported_memory_bytes <= found.memory_bytes * 2**30 / 1e9


def test_peaks_that_a_part_does_not_have() -> None:
    a100 = catalog.accelerator("a100-80gb-sxm")
    with pytest.raises(CostError, match="a100-80gb-sxm has no fp8 peak: the catalogue has bf16, int8, fp32"):
        a100.flops("fp8")
    assert a100.flops_for_weights("fp8") == a100.flops("bf16") == a100.flops_for_weights("q4_k")
    with pytest.raises(CostError, match="dtype 'bf17' is unknown"):
        a100.flops_for_weights("bf17")


def test_names_are_identifiers_and_complete() -> None:
    names = catalog.names()
    assert all(name.isidentifier() for name in names)
    assert names["llama_3_1_8b"] is catalog.model("llama-3.1-8b")
    assert names["h100_sxm"] is catalog.accelerator("h100-sxm")
    assert len(names) == len(catalog.models()) + len(catalog.accelerators())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: catalog.model("llama3-8b"), "the catalogue has no model 'llama3-8b': near are llama-3-8b"),
        (lambda: catalog.model("llama_3_8b"), "near are llama-3-8b"),
        (lambda: catalog.accelerator("h100"), "the catalogue has no accelerator 'h100': near are h100-sxm"),
        (lambda: catalog.model("zzz"), "there are deepseek-v3, gemma-3-27b"),
    ],
)
def test_unknown_slugs(call: Any, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        call()


def data_file(**changes: Any) -> dict[str, Any]:
    raw = json.loads(Path(catalog.__path__[0], "accelerators.json").read_text())["l4"]
    return {name: v for name, v in {**raw, **changes}.items() if v != "absent"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": "absent"}, "accelerators.json: x: the field memory_bytes is missing"),
        ({"memory": 24}, "the field memory is unknown"),
        ({"memory_bytes": "24 GB"}, "memory_bytes is '24 GB', which has the wrong type"),
        ({"bandwidth_bytes_per_s": 0}, "accelerators.json: x: memory_bandwidth is 0.0"),
        ({"dense_flops": {"bf16": -1}}, "bf16 is -1.0"),
        ({"source": {"url": "http://x", "checked": "2026-11-29", "how": "read"}}, "give an https address"),
        ({"source": {"url": "https://x", "checked": "29.11.2026", "how": "read"}}, "give a date such as"),
        ({"source": {"url": "https://x", "checked": "2026-11-29"}}, "source: the field how is missing"),
    ],
)
def test_broken_data_files_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        parse_accelerator("x", data_file(**changes))


def test_measured_machine() -> None:
    day = datetime.date(2026, 11, 29)
    found = catalog.measured_machine("2 cores", 10e9, 8e9, {"fp32": 1e11}, day, "reading 1 GB")
    assert (found.slug, found.memory_bandwidth, found.flops("fp32")) == ("this-machine", 10e9, 1e11)
    assert found.source == Source(None, day, "reading 1 GB")


def test_expert_count_is_bounded() -> None:
    with pytest.raises(CatalogError, match="num_experts_per_tok is 9, there are only 8 experts"):
        built(model_type="mixtral", num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=9)
