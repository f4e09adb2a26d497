"""Numbers as text: the rules, and the same text from Python and from the browser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from browser_page import launched

from visualizers.formats import FORMATS, fields, fill, format_value, with_unit

SCRIPT = Path(__file__).parents[2] / "handbook/assets/js/formats.js"


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (131072, "", "131,072"),
        (0.7, "", "0.7"),
        (3.14159, "", "3.14"),
        ("text", "int", "text"),
        (True, "", "yes"),
        (None, "sig3", "–"),
        (2.5, "int", "3"),
        (-2.5, "int", "-3"),
        (-0.2, "int", "0"),
        (1234567, "sig3", "1,230,000"),
        (9.996, "sig3", "10.0"),
        (0.00012345, "sig2", "0.00012"),
        (24.0, "sig3", "24"),
        (0.125, "fixed2", "0.13"),
        (0.125, "percent", "13%"),
        (0.9995, "percent1", "100.0%"),
        (1, "bytes", "1 byte"),
        (131072, "bytes", "128 KiB"),
        (2**30 + 2**20, "bytes", "1.00 GiB"),
        (1023.5 * 1024, "bytes", "1.00 MiB"),
        (1010 * 1024, "bytes", "1,010 KiB"),
        (141e9, "bytes10", "141 GB"),
        (0.04168, "seconds", "41.7 ms"),
        (0.0009996, "seconds", "1.00 ms"),
        (12e-9, "seconds", "12 ns"),
        (90, "seconds", "90 s"),
        (1.613e12, "compact", "1.61 T"),
        (999_500, "compact", "1.00 M"),
    ],
)
def test_a_value_in_a_format(value, name, expected):
    assert format_value(value, name) == expected


def test_unknown_formats_and_numbers_without_text_are_refused():
    with pytest.raises(ValueError, match="unknown format 'hex': choose from '', int"):
        format_value(1, "hex")
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not a finite number"):
            format_value(value, "int")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(8192, "tokens", "8,192 tokens"), (1, "tokens", "1 token"), (1, "ms", "1 ms"), (1, "GiB", "1 GiB"), (2, "", "2")],
)
def test_a_unit_is_singular_for_one(value, unit, expected):
    assert with_unit(value, unit) == expected


def test_a_sentence_is_filled_and_its_values_can_be_dressed():
    template = "It takes {size|bytes} for {count} tokens."
    values = {"size": 2048, "count": 8192}
    assert fields(template) == [("size", "bytes"), ("count", "")]
    assert fill(template, values) == "It takes 2 KiB for 8,192 tokens."
    assert fill(template, values, wrap=lambda v: f"*{v}*", text=str.upper) == "IT TAKES *2 KiB* FOR *8,192* TOKENS."


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "At any length, 0 tokens are"), (1, "Beyond 1, 1 token is"), (1234, "Beyond 1,234, 1,234 tokens are")],
)
def test_a_value_decides_words(count, said):
    template = "{n|int?At any length:Beyond #:Beyond #}, {n} {n|int?token is:tokens are}"
    assert fill(template, {"n": count}) == said
    assert fields(template) == [("n", "int"), ("n", ""), ("n", "int")]


@pytest.mark.parametrize("forms", ["", "one", "a:b:c:d"])
def test_words_need_two_or_three_forms(forms):
    with pytest.raises(ValueError, match="needs two forms"):
        fill("{n?" + forms + "}", {"n": 1})


@pytest.mark.parametrize("template", ["{size|bytes", "{Size}", "{size:3}", "a } b"])
def test_a_field_that_cannot_be_read_is_refused(template):
    with pytest.raises(ValueError, match="cannot be read"):
        fill(template, {"size": 1})


def test_a_field_without_a_value_is_refused():
    with pytest.raises(ValueError, match="names 'speed', which is no value: there are size"):
        fill("{speed}", {"size": 1})


@pytest.mark.browser
def test_the_browser_writes_every_number_as_python_does():
    rng = random.Random(7)
    edges = [0.0, 0.5, 1.5, 2.5, 0.125, 0.375, 9.995, 99.95, 999.5, 999.49999999, 1023.5, 1023.4999, 0.9995, 0.99949]
    values = [sign * v for v in edges for sign in (1, -1)] + [2**20 - 1, 2**53, 1e21, 1.5e22, 5e-10, 0.7, 0.1]
    values += [rng.uniform(-1, 1) * 10 ** rng.uniform(-9, 20) for _ in range(3000)]
    values += [rng.randrange(10 ** rng.randrange(1, 15)) for _ in range(1000)]
    values += [rng.randrange(10**6) / 2 ** rng.randrange(1, 12) for _ in range(1500)]
    with launched() as browser:
        page = browser.new_page()
        found = page.evaluate(
            """async ([source, values, names]) => {
                const script = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
                const { formatValue } = await import(script);
                return names.map((name) => values.map((value) => formatValue(value, name)));
            }""",
            [SCRIPT.read_text(encoding="utf-8"), values, list(FORMATS)],
        )
    for name, texts in zip(FORMATS, found, strict=True):
        assert texts == [format_value(v, name) for v in values], name


@pytest.mark.browser
def test_the_browser_fills_a_sentence_as_python_does():
    template = "{n} {n?token:tokens} of {size|bytes}, {n|int?never:once:# times}"
    cases = [{"n": n, "size": 2**20 * n} for n in (0, 1, 2, 1500, 0.4, 1.0)]
    with launched() as browser:
        found = browser.new_page().evaluate(
            """async ([source, template, cases]) => {
                const script = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
                const { partText, templateParts } = await import(script);
                return cases.map((values) => templateParts(template).map((part) => partText(part, values)).join(""));
            }""",
            [SCRIPT.read_text(encoding="utf-8"), template, cases],
        )
    assert found == [fill(template, values) for values in cases]
