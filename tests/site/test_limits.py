"""No page, no figure's default and no quoted command leaves a model's context limit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from minillm import catalog
from visualizers import registry
from visualizers.levels.computed import ComputedFigures
from visualizers.levels.snapshot import Snapshot
from visualizers.site import blocks
from visualizers.site.formulas import evaluate
from visualizers.site.limits import WithinLimit, check
from visualizers.site.namespace import names
from visualizers.site.project import Page, load
from visualizers.site.scan import tokens
from visualizers.site.values import Entry, FormulaError, Namespace

ROOT = Path(__file__).resolve().parents[2]
NAMES: Namespace = {
    "llama_2_7b": Entry("llama_2_7b", WithinLimit("llama_2_7b", catalog.model("llama-2-7b")), catalog.DIMENSIONS),
    "h100_sxm": Entry("h100_sxm", catalog.accelerator("h100-sxm"), catalog.DIMENSIONS),
}
WITH_A_LIMIT = [v for v in registry.all() if "within_limit" in v.units]


@pytest.mark.parametrize(
    "formula",
    [
        'llama_2_7b.kv_bytes(4097, "bf16")',
        'llama_2_7b.kv_bytes(context_tokens=8192, dtype="bf16")',
        "llama_2_7b.decode_bytes(5000, 32)",
        "llama_2_7b.prefill_flops(4096)",  # no room for an answer
        "llama_2_7b.prefill_time_s(h100_sxm, 8192)",
        "llama_2_7b.verify_cost(h100_sxm, 4, 1, 8192)",
        "llama_2_7b.longest_chunk_s(h100_sxm, 2048, 512, 32, 8192)",
    ],
)
def test_a_formula_beyond_the_limit_is_refused(formula: str) -> None:
    with pytest.raises(FormulaError, match="llama_2_7b takes 4,096 tokens"):
        evaluate(formula, NAMES)


@pytest.mark.parametrize(
    "formula", ['llama_2_7b.kv_bytes(4096, "bf16", 64)', "llama_2_7b.prefill_flops(4000)", "llama_2_7b.layers"]
)
def test_a_formula_within_the_limit_is_not(formula: str) -> None:
    assert evaluate(formula, NAMES).values


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("Llama 2 7B at 13,400 tokens is slow.", 1),
        ("| Llama 3 8B | 131,072 tokens |", 1),
        ("Llama 3 70B wins up to [430,625 tokens]{= 1}.", 1),
        ("Llama 3.1 8B takes 131,072 tokens.", 0),
        ("Llama 2 7B has 524,288 bytes a token.", 0),
        ("Llama 2 7B is small. A batch has 13,400 tokens.", 0),
        ("Llama 2 7B and Llama 3.1 8B at 100,000 tokens.", 0),
    ],
)
def test_a_sentence_beyond_the_limit_is_found(body: str, count: int) -> None:
    page: Any = type("Page", (), {"tokens": tokens(body), "file": "x.md"})()
    assert len(list(check(page))) == count


def test_the_catalogue_reaches_formulas_within_limits_only() -> None:
    found = names(ComputedFigures())
    assert all(isinstance(found[n].target, WithinLimit) for n in ("llama_3_1_8b", "gpt_oss_20b"))  # type: ignore[union-attr]


def test_every_figure_with_a_model_and_a_length_tells_its_limit() -> None:
    takes_both = {v.name for v in registry.all() if {"model", "context"} <= {i.name for i in v.inputs}}
    assert takes_both <= {v.name for v in WITH_A_LIMIT}
    assert {"kv-cache-size", "decode-ceiling"} <= takes_both


def _presets() -> list[Any]:
    """Defaults, the states that pages set, and those of quoted commands."""
    found: list[tuple[str, dict[str, Any]]] = [(v.name, {}) for v in WITH_A_LIMIT]
    for page in load(ROOT, strict=False).pages:
        found += [(block.name, dict(block.state)) for _, block in blocks.figures(page.tokens)]
        found += _commands(page)
    known = {v.name for v in WITH_A_LIMIT}
    return [pytest.param(n, s, id=f"{n}-{i}") for i, (n, s) in enumerate(found) if n in known]


def _commands(page: Page) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for token in page.tokens:
        for line in token.text.split("\n") if token.kind in ("fence", "code") else ():
            if "-m visualizers" in line:
                words = [w for w in shlex.split(line.partition("-m visualizers")[2]) if w != "--json"]
                given = {a[2:].replace("-", "_"): b for a, b in zip(words[1::2], words[2::2], strict=False)}
                found.append((words[0], given))
    return found


@pytest.mark.parametrize(("name", "state"), _presets())
def test_defaults_presets_and_quoted_commands_are_within_the_limit(name: str, state: dict[str, Any]) -> None:
    assert Snapshot(registry.get(name)).at(state).data.values["within_limit"] == "within"
