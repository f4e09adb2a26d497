"""Every finding of ``handbook check`` is found, with its file and line, and a sound book has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_book import NAMES, CardboardFigures, write_book

from visualizers.site import pagechecks
from visualizers.site.check import check
from visualizers.site.frontmatter import parse
from visualizers.site.project import load

PAGING = "handbook/serving/paging.md"
VISUALIZE, GENERATE = ".venv/bin/python -m visualizers", ".venv/bin/minillm generate"
CACHE = "handbook/basics/cache.md"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    root = write_book(tmp_path)
    assert findings(root, fix=True) == []
    return root


def findings(root: Path, *, fix: bool = False) -> list[str]:
    return [str(problem) for problem in check(root, CardboardFigures(), NAMES, fix=fix)]


def test_a_sound_book_has_no_finding(book: Path) -> None:
    assert findings(book) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        # Front matter.
        (PAGING, "title: Paging & sharing\n", "", f"{PAGING}:1: front matter has no `title`"),
        (PAGING, "notebook:", "notes: 1\nnotebook:", f"{PAGING}:8: front matter has an unknown field `notes`"),
        (PAGING, "updated: 2026-11-29", 'updated: "soon"', f"{PAGING}:5: `updated` is 'soon'"),
        (PAGING, '["5.4", "5.5"]', "[5.4]", f"{PAGING}:4: `ids` is [5.4]"),
        (PAGING, '["5.4", "5.5"]', '["5"]', f"{PAGING}:4: `ids` has '5'"),
        (PAGING, "[paper, sheet]", "[paper, paper, sheet]", f"{PAGING}:7: `sources` names the same thing twice"),
        (PAGING, "notebook: blocks", "notebook: ../x", f"{PAGING}:8: `notebook` is '../x'"),
        (PAGING, "description: Memory", "description: " + "x" * 200, f"{PAGING}:3: `description` has"),
        (PAGING, "ids:", "ids: [", f"{PAGING}:5: front matter is not YAML"),
        (PAGING, "---\ntitle", "title", f"{PAGING}:1: no front matter"),
        # Numbers.
        (PAGING, "[3.35 TB/s]", "[3.36 TB/s]", f"{PAGING}:53: [3.36 TB/s] says 3.36 TB/s"),
        (PAGING, "fast.memory_bandwidth}", "fast.bandwidth}", f"{PAGING}:53: [3.35 TB/s]: `fast` has no `bandwidth`"),
        (PAGING, "[64 GB]{~}", "64 GB", f"{PAGING}:15: '64 GB' has neither a formula nor a source"),
        (PAGING, "[64 GB]{~}", "[64 GB]{= 64 * GB}", "only says the number again: write [64 GB]{~ why}"),
        (PAGING, "[64 GB]{~}", "[12 times]{= 12}", "only says the number again"),
        (PAGING, "[64 GB]{~}", "[12 times]{~}", "says how much more one thing is than another: compute or cite it"),
        (PAGING, "[64 GB]{~}", "[some]{~}", "[some] has no number that could be assumed"),
        (PAGING, "[38.2%]", "[48.2%]", f"{PAGING}:15: [48.2%] is not among the `values` of paper"),
        (PAGING, "{@ paper}", "{@ papers}", f"{PAGING}:15: [38.2%] cites 'papers', which is not in"),
        (PAGING, "sources: [paper, sheet]", "sources: [paper]", "[3 GB/s] cites 'sheet', which the page's `sources`"),
        (PAGING, "## What it costs", "## It costs [2 MiB]{= 2 * MiB}", "[2 MiB] stands in a heading"),
        # Figures.
        (PAGING, "size: 32", "size 32", f"{PAGING}:28: 'size 32' in the figure block of blocks is not `input: value`"),
        (PAGING, "blocks\nsize: 32", "", f"{PAGING}:28: the figure block is empty"),
        (PAGING, "blocks\nsize", "bricks\nsize", f"{PAGING}:28: there is no visualizer 'bricks'"),
        (PAGING, "size: 32", "size: 32\nsize: 33", "sets size twice"),
        (PAGING, "size: 32", "colour: red", f"{PAGING}:28: blocks has no input 'colour'"),
        (PAGING, "notebook: blocks", "notebook: bricks", "notebook names 'bricks', but no figure of the page"),
        (PAGING, "notebook: blocks\n", "", "has the figure of 'blocks', but its front matter names no notebook"),
        # Links, anchors, mathematics, skeleton.
        (PAGING, "../basics/cache.md#what-it-costs", "../basics/cache.md#costs", "an anchor that basics/cache.md"),
        (PAGING, "(#a-code-of-its-own)", "(#a-code)", "names an anchor that serving/paging.md does not have"),
        (PAGING, "(../basics/cache.md).\n", "(cache.md).\n", "leads to serving/cache.md, which is no page"),
        (PAGING, "(../basics/cache.md).\n", "(/basics/).\n", "neither https:// nor relative"),
        (PAGING, "$x_1 * y^2 < z$", "$\\nonsense{x}$", f"{PAGING}:24: LaTeX"),
        (PAGING, "## When not to use it", "## Never", "lacks the heading `## When not to use it`"),
        (PAGING, "## Try it", "# Try it", "has a first-level heading"),
        (PAGING, "## Try it", "## Try it\n\nx\n\n## Sources", "has a heading Sources"),
        # What is quoted to be typed.
        (PAGING, "`--min-p 0.1, --seed 7`", "`--min-q 0.1`", f"{PAGING}:65: `--min-q 0.1`: no command and no figure"),
        (PAGING, "`--min-p 0.1, --seed 7`", "`--size x --seeds 7`", "no figure of this page has --seeds"),
        (PAGING, "`handbook/assets`", "`minillm/nowhere.py`", "`minillm/nowhere.py` is no file of the repository"),
        (PAGING, "`handbook/assets`", "`minillm.core.nothing`", "`minillm.core.nothing` is no module"),
        (PAGING, "`handbook/assets`", "`minillm generate --temperatur 0`", "minillm has no option --temperatur"),
        (PAGING, "`handbook/assets`", "`minillm generat --seed 7`", "invalid choice: 'generat'"),
        (PAGING, "1. Try", "```bash\nminillm generate\n```\n\n1. Try", "write .venv/bin/minillm, which runs without"),
        (PAGING, "1. Try", f"```bash\n{VISUALIZE} bricks\n```\n\n1. Try", "there is no visualizer 'bricks'"),
        (PAGING, "1. Try", f"```bash\n{VISUALIZE} blocks --sizes 3\n```\n\n1. Try", "blocks has no input 'sizes'"),
        (PAGING, "1. Try", f"```bash\n{GENERATE} --json-schema a.json\n```\n\n1. Try", "there is no file a.json"),
        (PAGING, "1. Try", f"```bash\n{GENERATE} --model nano\n```\n\n1. Try", "there is no model nano"),
        (PAGING, "1. Try", f"```bash\n{GENERATE} --seed x\n```\n\n1. Try", "invalid int value: 'x'"),
        (PAGING, "1. Try", "```bash\n.venv/bin/python tools/none.py\n```\n\n1. Try", "there is no tools/none.py"),
        (PAGING, "1. Try", "```bash\nvllm serve\n```\n\n1. Try", "vllm is no command of this project"),
        # Other pages, reference files, stems.
        (PAGING, "depends_on: [cache]", "depends_on: [cash]", "depends_on names 'cash', which is no page"),
        (CACHE, "depends_on: []", "depends_on: [paging]", "depends_on goes round in a ring: cache -> paging -> cache"),
        (CACHE, '["1.6"]', '["5.4"]', "covers id 5.4"),
        (PAGING, "[3 GB/s]{@ sheet, paper}", "[3 GB/s]{@ paper}", "sources names 'sheet', but the text cites it"),
        ("handbook/bibliography.yml", "sheet:", "extra:", "handbook/bibliography.yml:10: extra: no page names it"),
        ("handbook/bibliography.yml", '["38.2%"]', '["38.2%", "4 ms"]', "paper: no page cites '4 ms' of its `values`"),
        ("handbook/bibliography.yml", "kind: paper", "kind: song", "paper: kind is 'song'"),
        ("handbook/bibliography.yml", "  year: 2023\n", "", "paper: has no `year`"),
        ("handbook/bibliography.yml", "https://example.org/sheet", "example.org", "sheet: url is 'example.org'"),
        ("handbook/bibliography.yml", "paper:\n", "Paper_1:\n", "small letters"),
        ("handbook/glossary.yml", "page: paging\n", "page: pages\n", "glossary.yml:1: block: there is no page"),
        ("handbook/glossary.yml", "KV block]", "block table]", "'block table' is already a form of 'block'"),
        ("handbook/glossary.yml", "aliases:", "alias:", "block: has an unknown field `alias`"),
        ("mkdocs.yml", "basics/cache.md", "basics/cash.md", "nav names basics/cash.md, but there is no"),
        ("mkdocs.yml", "basics/cache.md", "basics/cash.md", f"{CACHE}: is not in the nav of mkdocs.yml"),
        ("notebooks/blocks.py", "==0.1.0", "==0.0.9", 'does not name "inference-handbook==0.1.0"'),
        ("notebooks/blocks.py", '0.1.0"]', '0.1.0", "minillm"]', 'names "minillm", a stranger'),
        ("notebooks/blocks.py", "# /// script", "#", "does not start with script metadata"),
        ("llms.txt", "The cache", "The cash", "llms.txt: is stale"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(book: Path, file: str, old: str, new: str, found: str) -> None:
    path = book / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    lines = findings(book)
    assert any(found in line for line in lines), "\n".join(lines)


def test_a_figure_that_no_page_shows_and_a_missing_notebook(book: Path) -> None:
    for page in ("index.md", "serving/paging.md"):
        file = book / "handbook" / page
        text = file.read_text(encoding="utf-8").replace("```figure", "```text")
        file.write_text(text.replace("notebook: blocks\n", ""), encoding="utf-8")
    (book / "notebooks" / "blocks.py").unlink()
    lines = "\n".join(findings(book))
    assert "visualizers/figures/blocks.py: no page shows it" in lines
    assert "notebooks/blocks.py: is missing" in lines


def test_figures_of_a_page_share_an_input_only_where_it_means_the_same(book: Path) -> None:
    class Two(CardboardFigures):
        def names(self) -> tuple[str, ...]:
            return ("blocks", "boxes")

        def html(self, name: str, state: Mapping[str, str], base_url: str) -> str:
            return super().html("blocks", state, base_url)

        def meanings(self, name: str) -> Mapping[str, str]:
            return {"size": "Block size (tokens)" if name == "blocks" else "Size of a box (cm)"}

    page = load(book).by_stem["paging"]
    text = page.body + "\n```figure\nboxes\n```\n"
    twice = dataclasses.replace(page, body=text)
    (problem,) = [p for p in pagechecks.check(twice, load(book), Two()) if "both have an input" in p.message]
    assert "boxes and blocks both have an input 'size'" in problem.message
    assert not [p for p in pagechecks.check(page, load(book), Two()) if "both have" in p.message]


def test_a_page_that_is_not_utf8(book: Path) -> None:
    (book / CACHE).write_bytes(b"---\ntitle: \xff\n---\n")
    assert any("is not UTF-8 at byte 11" in line for line in findings(book))


def test_a_stale_index_is_mended_on_demand(book: Path) -> None:
    (book / "llms.txt").write_text("old", encoding="utf-8")
    assert findings(book) == ["llms.txt: is stale: run `handbook check --fix`"]
    assert findings(book, fix=True) == []
    assert findings(book) == []


def test_the_home_page_needs_less() -> None:
    text = "---\ntitle: A\ndescription: B.\nupdated: 2026-11-29\n---\n"
    assert parse(text, "index.md", home=True)[1] == []
    assert parse(text, "page.md")[1] != []
