"""The Markdown twins: the same at every address, made from the source, with the numbers of the figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_book import NAMES, CardboardFigures, write_book

from visualizers.site import llms
from visualizers.site.build import Builder
from visualizers.site.files import files_below
from visualizers.site.twins import addresses

URLS = ["", "basics/cache/", "serving/paging/", "reference/map/", "reference/glossary/", "reference/sources/"]


def twin(built: Any, path: str = "serving/paging.md") -> str:
    return str((built.out / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("url", URLS)
def test_a_twin_is_the_same_at_every_address(built: Any, url: str) -> None:
    texts = {(built.out / address).read_bytes() for address in addresses(url)}
    assert len(texts) == 1
    assert len(addresses(url)) == (3 if url else 2)


def test_a_twin_says_where_it_is_from(built: Any) -> None:
    fields = yaml.safe_load(twin(built).split("---")[1])
    root = built.content.project.site_url
    assert fields["title"] == "2.1 Paging & sharing"
    assert fields["description"] == 'Memory in blocks, "shared" where it can be.'
    assert fields["canonical"] == f"{root}serving/paging/"
    assert fields["updated"] == "2026-11-29"
    assert fields["depends_on"] == [f"{root}basics/cache.md"]
    assert fields["sources"] == ["https://example.org/paper?a=1&b=2", "https://example.org/sheet"]
    assert "notebook" not in fields  # built without any that could run


def test_a_notebook_is_named_where_it_runs(tmp_path: Path) -> None:
    book, made = write_book(tmp_path / "book"), tmp_path / "notebooks"
    made.mkdir()
    (made / "blocks.html").write_text("x")
    for live, notebooks, found in ((False, made, "notebooks/blocks.html"), (True, None, "live/blocks/")):
        builder = Builder(book, CardboardFigures(), NAMES, live=live, say=lambda _: None)
        content = builder.build(tmp_path / f"out-{live}", notebooks)
        fields = yaml.safe_load(content.twins["serving/paging.md"].split("---")[1])
        assert fields["notebook"] == content.project.site_url + found


def test_footnotes_of_a_bundle_have_one_meaning_each(built: Any) -> None:
    labels = re.findall(r"^\[\^([^\]]+)\]: ", twin(built, "llms-full.txt"), re.MULTILINE)
    assert labels
    assert len(labels) == len(set(labels))


def test_a_figure_in_one_state_is_written_out_once() -> None:
    one = "### Figure: A\n\nBody.\n\n[The figure, with this state](https://x/1)\n"
    other = one.replace("Body", "Another")
    text = llms._figures_once(f"{one}\n# Page\n\n{one.replace('x/1', 'x/2')}\n{other}")
    assert text.count("Body.") == text.count("Another.") == text.count("Written out above") == 1
    assert "(https://x/2)" in text


def test_numbers_read_as_text_and_keep_their_formula(built: Any) -> None:
    text = twin(built)
    assert "holds 16 tokens, 2 MiB[^5.4-n1] of them" in text
    assert '[^5.4-n1]: `16 * tiny.kv_bytes_per_token("bf16") = 16 × 128 KiB = 2 MiB`' in text
    assert text.count("[^5.4-n1]: ") == 1  # the table cites the same formula
    assert "or 64 GB[^5.4-n2]. See" in text
    assert "[^5.4-n2]: Assumed for this example." in text
    assert "up to 38.2%[^5.4-s1] of it" in text
    assert "3 GB/s[^5.4-s2][^5.4-s1]" in text
    assert "[^5.4-s1]: A. One, B. Two, C. Three. [A Paper <about> Blocks](https://example.org/paper?a=1&b=2)." in text
    assert "]{" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_mathematics_code_and_tabs_are_intact(built: Any) -> None:
    text = twin(built)
    for piece in (
        "Inline $x_1 * y^2 < z$ and `code_with * stars`.",
        "$$\\text{slot}(p) = \\text{table}[\\lfloor p / B \\rfloor] \\cdot B$$",
        '```python title="a/b.py"\nx = "[24 GB]{= nope}"  # not a mark\n```',
        '=== "First tab"',
        '!!! note "A note"',
    ):
        assert piece in text


@pytest.mark.parametrize("url", URLS)
def test_links_are_absolute(built: Any, url: str) -> None:
    text = re.sub(r"```.*?```", "", twin(built, addresses(url)[0]), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"`[^`]*`", "", text))
    assert links or url == "basics/cache/"
    assert [link for link in links if not link.startswith("https://")] == []


def test_links_within_the_book_lead_to_twins(built: Any) -> None:
    root = built.content.project.site_url
    text = twin(built)
    assert f"[its costs]({root}basics/cache.md#what-it-costs)" in text
    assert f"[this]({root}serving/paging.md#a-code-of-its-own)" in text
    files = set(files_below(built.out))
    for address in re.findall(rf"\]\({re.escape(root)}([^)#?]*)", text):
        assert address in files or f"{address}index.html" in files


def test_the_numbers_of_a_figure_are_those_of_its_html(built: Any) -> None:
    figures = CardboardFigures()
    told = figures.markdown("blocks", {"size": "32"}, built.content.project.site_url + "serving/paging/")
    assert told.strip() in twin(built)
    assert "holds 128 bytes" in twin(built)
    assert "holds <b>128</b> bytes" in built.html("serving/paging")


def test_llms_txt_names_every_page_in_order(built: Any) -> None:
    text = twin(built, "llms.txt")
    root = built.content.project.site_url
    lines = re.findall(r"^- \[(.+?)\]\((.+?)\): (.+)$", text, re.MULTILINE)
    assert [address.removeprefix(root) for _, address, _ in lines] == [
        "index.md",
        "basics/cache.md",
        "serving/paging.md",
        "reference/map.md",
        "reference/glossary.md",
        "reference/sources.md",
        "llms-full.txt",
        "bundles/basics.md",
        "bundles/serving.md",
        "search/search_index.json",
        "feed.xml",
    ]
    for _, address, description in lines:
        assert (built.out / address.removeprefix(root)).is_file()
        assert description.partition(" (about ")[0].endswith(".")


def test_bundles_hold_their_pages_and_say_their_size(built: Any) -> None:
    bundle = twin(built, "bundles/serving.md")
    assert twin(built).strip() in bundle
    fields = yaml.safe_load(bundle.split("---")[1])
    body = bundle.split("---\n\n", 1)[1]
    assert fields["tokens"] == -(-len(body.encode()) // 4)
    assert fields["tokens_method"] == "UTF-8 bytes divided by 4"
    whole = twin(built, "llms-full.txt")
    for url in URLS:
        assert twin(built, addresses(url)[0]).strip() in whole
