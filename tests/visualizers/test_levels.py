"""What is derived from a figure says the same everywhere: page, payload, Markdown."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from html.parser import HTMLParser

import pytest
from example_figure import VISUALIZER

from visualizers.contract import Column, InputError, Number, Table
from visualizers.levels import charts, controls, describe, printed
from visualizers.levels.computed import ComputedFigures
from visualizers.levels.instant import payload, vega_bundle
from visualizers.levels.markdown import figure_markdown, points
from visualizers.levels.page import figure_html
from visualizers.levels.snapshot import FigureError, Snapshot
from visualizers.levels.tables import markdown_table


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


@pytest.fixture(scope="module")
def html(snapshot: Snapshot) -> str:
    return figure_html(snapshot, {}, base_url="../", repo_url="https://code.example/book/")


class Elements(HTMLParser):
    """The elements of a document: (tag, attributes), and which stay open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_the_whole_figure_before_any_script(html):
    assert 'The cache takes <span class="hbf-value">512 MiB</span>' in html
    assert '<td>KV cache</td><td class="hbf-number">0.50</td>' in html
    assert 'data-payload="../figures/example.json"' in html
    assert "https://code.example/book/blob/main/tests/example_figure.py#L" in html
    assert html.count("<svg ") == 2
    assert "Memory &amp; blocks" in html
    assert "Memory & blocks" not in html


def test_the_page_is_well_formed_and_every_reference_leads_somewhere(html):
    elements = Elements(html)
    assert elements.open == []
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in elements.found:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set((attributes.get(name) or "").split()) <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)


def test_the_printed_chart_follows_the_theme_and_has_a_name(html):
    for name in ("kv", "free", "muted"):
        assert f'="var(--hb-{name})"' in html
    assert "font-family" not in html
    svg = html[html.index("<svg ") :]
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="')


def test_both_sizes_fill_their_width_and_reserve_their_height(html):
    sizes = [(int(w), int(h)) for w, h in re.findall(r'<svg [^>]*width="(\d+)" height="(\d+)"', html)]
    assert [w for w, _ in sizes] == pytest.approx([charts.WIDE, charts.NARROW], abs=2)
    assert f"--hbf-wide:{sizes[0][1]}px;--hbf-narrow:{sizes[1][1]}px" in html


def test_a_page_may_set_a_state_and_show_a_figure_twice(snapshot, html):
    other = figure_html(snapshot, {"context": "16384"}, base_url="")
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (html, other)]
    assert not ids[0] & ids[1]
    assert 'aria-valuetext="16,384 tokens"' in other
    assert ".venv/bin/python -m visualizers example --context 16384 --fresh --json" in other
    assert "&quot;context&quot;: 16384" in other


def test_a_page_cannot_set_what_only_a_kernel_moves(snapshot):
    with pytest.raises(FigureError, match="cannot set 'prompt', which moves with a kernel only"):
        figure_html(snapshot, {"prompt": "Hello"}, base_url="")


def test_a_page_cannot_set_a_grid_input_between_its_states(snapshot):
    with pytest.raises(InputError, match="--block 17 has no state that is computed: choose from 1, 16 or 256"):
        figure_html(snapshot, {"block": "17"}, base_url="")


def test_text_from_a_visualizer_is_escaped(snapshot):
    nasty = '<script>alert("1")</script>'
    bad = dataclasses.replace(VISUALIZER, title=nasty, summary=nasty, formula=nasty, provenance=lambda: nasty)
    text = figure_html(Snapshot(bad), {}, base_url="")
    assert "<script" not in text
    assert 'alert("1")' not in re.sub(r">[^<]*<", "><", text)


def test_the_payload_is_small_and_says_each_thing_once(snapshot):
    found = payload(snapshot)
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    assert len(gzip.compress(text.encode())) < 5_000
    assert len(found["states"]) == 6
    assert len(found["charts"]) == len(found["sentences"]) == len(found["heads"]) == 1
    for name in ("cells", "exprs"):
        keys = [json.dumps(item) for item in found[name]]
        assert len(keys) == len(set(keys))
    assert found["charts"][0]["$schema"].startswith("https://vega.github.io/schema/vega/")


def test_the_bundle_is_one_script_that_fetches_nothing():
    bundle = vega_bundle()
    assert bundle.rstrip().endswith("};")
    assert "globalThis.hbVega" in bundle
    assert not re.search(r"\bimport\s*[({*\"]", bundle[:2000] + bundle[-2000:])
    assert len(gzip.compress(bundle.encode())) < 215_000


def test_the_twin_has_the_figures_numbers(snapshot):
    text = figure_markdown(snapshot, {"model": "large"}, page_url="https://book.example/kv/")
    state = snapshot.at({"model": "large"})
    for name, value in state.data.values.items():
        shown = int(value) if value == 0 else value
        assert f"| `{name}` | {shown} | {VISUALIZER.units[name]} |" in text
    assert state.text() in text
    assert "| KV cache | 2.50 |" in text
    assert ".venv/bin/python -m visualizers example --model large --fresh --json" in text
    assert re.search(r"\(https://book\.example/kv/\?model=large#figure-example-[0-9a-f]{6}\)", text)
    assert "| 131072 | 42949672960 | 42949672960 |" in text  # an end of the context, at this state's other inputs


def test_the_twins_tables_are_tables(snapshot):
    text = figure_markdown(snapshot, {}, page_url="https://book.example/kv/")
    blocks = [b.splitlines() for b in text.split("\n\n") if b.startswith("|")]
    assert len(blocks) >= 6
    for lines in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_a_column_of_words_aligns_at_the_left_in_the_twin(snapshot):
    text = figure_markdown(snapshot, {}, page_url="https://book.example/kv/")
    tables = [b.splitlines() for b in text.split("\n\n") if b.startswith("|")]
    seen = set()
    for head, rule, *rows in tables:
        columns = zip(*(re.split(r" (?<!\\)\| ", line[2:-2]) for line in (rule, *rows)), strict=True)
        for align, *cells in columns:
            numbers = all(re.fullmatch(r"–|-?[\d,.]+(e[-+]?\d+)?", cell) for cell in cells)
            assert align == ("---:" if numbers else "---"), (head, cells)
            seen.add(align)
    assert seen == {"---", "---:"}


def test_a_value_that_is_no_amount_has_a_word():
    number = Number("top_k", "Top-k", "tokens", 0, 0, 40, "", stops=(0, 1, 40), instant="grid", words={0: "off"})
    assert [controls.value_text(number, v) for v in number.stops] == ["off", "1 token", "40 tokens"]
    assert ">off</output>" in controls.control_html(number, 0, "f")


def test_points_of_an_input_have_both_ends_and_the_default():
    for given in VISUALIZER.inputs:
        found = points(given)
        assert given.default in found
        if given.instant != "live":
            assert set(given.ends()) <= set(found)


@pytest.mark.parametrize(
    ("number", "some", "most"),
    [
        (Number("n", "N", "", 8192, 1, 131072, "", log=True), {1, 5, 1024, 1280, 131072}, 70),
        (Number("n", "N", "", 30, 10, 10_000, "", log=True), {10, 30, 100, 1000, 10_000}, 80),
        (Number("n", "N", "", 0.7, 0, 2, "", step=0.1, integer=False), {0, 0.7, 2}, 22),
        (Number("n", "N", "", 1234, 0, 100_000, ""), {0, 1234, 100_000}, 403),
        (Number("n", "N", "", 16, 1, 256, "", stops=(1, 16, 256), instant="grid"), {1, 16, 256}, 3),
    ],
)
def test_a_slider_stands_on_readable_values(number, some, most):
    found = controls.stops(number)
    assert some <= set(found)
    assert len(found) <= most
    assert list(found) == sorted(set(found))
    assert found[0] == number.low
    assert found[-1] == number.high


def test_a_column_of_numbers_aligns_at_the_right_on_the_page_and_in_the_twin():
    columns = tuple(Column(key, key, format="int" if key == "n" else "") for key in ("n", "word", "flag"))
    table = Table(columns, [{"n": 1024, "word": "a|b", "flag": True}, {"n": None, "word": "c", "flag": False}])
    assert printed.table_html(table, "c").count('class="hbf-number"') == 3  # the heading and two cells
    lines = markdown_table(table.headings(), table.texts(), table.numeric()).splitlines()
    assert lines[1:] == ["| ---: | --- | --- |", "| 1,024 | a\\|b | yes |", "| – | c | no |"]


def test_an_empty_table_is_a_table():
    table = printed.table_html(Table(VISUALIZER.table(Snapshot(VISUALIZER).default.data).columns, []), "None")
    assert table.count("<th ") == 2
    assert "<tbody></tbody>" in table


def test_the_record_is_flat_and_plain(snapshot):
    found = json.loads(json.dumps(describe.record(snapshot, snapshot.default)))
    assert found["used_bytes"] == 536870912
    assert found["inputs"] == VISUALIZER.defaults()
    assert found["table"]["rows"][0] == {"kind": "KV cache", "gib": 0.5}


def test_the_sites_figures_are_the_registered_ones_computed_once(tmp_path, monkeypatch):
    computed: list[object] = []
    counting = dataclasses.replace(VISUALIZER, compute=lambda i: computed.append(i) or VISUALIZER.compute(i))
    monkeypatch.setattr("visualizers.registry.get", lambda _: counting)
    figures = ComputedFigures("https://code.example/book", tmp_path)
    first = figures.html("example", {"block": "256"}, "../")
    values, units = figures.values("example")
    assert (values["kept_bytes"], units["kept_bytes"]) == (536870912, "bytes")
    count = len(computed)
    assert figures.html("example", {"block": "256"}, "../") is first
    assert len(computed) == count
