"""What a built page holds: marks, terms, mathematics, figures, sources, facts about itself."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from small_book import Article

from visualizers.site import postprocess
from visualizers.site.errors import SiteError
from visualizers.site.files import files_below

PAGES = ["", "basics/cache/", "serving/paging/", "reference/map/", "reference/glossary/", "reference/sources/"]


def paging(built: Any) -> str:
    return str(built.html("serving/paging"))


def test_a_computed_number_shows_its_formula_and_values(built: Any) -> None:
    (title,) = set(re.findall(r'<span class="hb-num" tabindex="0" title="([^"]*)">2&nbsp;MiB</span>', paging(built)))
    shown = re.sub(r"&#(\d+);", lambda m: chr(int(m.group(1))), title)
    assert shown == '16 * tiny.kv_bytes_per_token("bf16")\n= 16 × 128 KiB\n= 2 MiB'


def test_a_chosen_number_is_no_stop_for_the_keyboard(built: Any) -> None:
    assumed = 'class="hb-num hb-assumed" tabindex="0" title="Assumed for this example&#46;">64&nbsp;GB</span>'
    assert assumed in paging(built).replace("example.", "example&#46;")


def test_a_cited_number_leads_to_its_sources(built: Any) -> None:
    html = paging(built)
    assert re.search(r'38\.2%</span><sup class="hb-ref"><a href="#source(-|&#45;)paper"[^>]*>1</a></sup>', html)
    article = Article(html)
    assert {"source-paper", "source-sheet"} <= article.ids
    assert ("https://example.org/paper?a=1&b=2", "A Paper <about> Blocks") in article.links
    assert "Checked 2026-11-01" in article.text


def test_terms_are_linked_once_a_section(built: Any) -> None:
    terms = [text for href, text in Article(paging(built)).links if "glossary" in href]
    # The lead links both terms, "The problem" its first block, the note in "The mechanism" its own.
    assert terms == ["block table", "block", "block", "block"]


def test_mathematics_is_mathml(built: Any) -> None:
    html = paging(built)
    assert html.count("<math ") == 2
    assert 'alttext="x' in html
    assert "$" not in Article(html).text


def test_figures_stand_in_the_page_with_their_state(built: Any) -> None:
    assert Article(built.html("")).figures == ["blocks ./figures/blocks.json"]
    html = paging(built)
    assert Article(html).figures == ["blocks ../../figures/blocks.json"]
    assert '<svg viewBox="0 0 32 10"><clipPath id="c_1"/><text>a_b * c_ ` [x](y) 32</text></svg>' in html
    assert "<b>128</b>" in html


def test_code_is_left_alone(built: Any) -> None:
    assert "[24 GB]{= nope}" in Article(paging(built)).text


def test_a_page_says_what_it_is(built: Any) -> None:
    html = paging(built)
    assert "<title>Paging &amp; sharing · The inference handbook</title>" in html
    assert html.count('<meta name="description"') == html.count('<link rel="canonical"') == 1
    assert '<meta name="description" content="Memory in blocks, &quot;shared&quot; where it can be.">' in html
    assert re.search(r'<link rel="canonical" href="https://[^"]+/serving/paging/">', html)
    assert '<link rel="alternate" type="text/markdown" title="Markdown" href="../paging.md">' in html
    assert '<time datetime="2026-11-29">' in html
    assert "generator" not in html.split("</head>")[0]


def test_headings_have_the_anchors_that_the_checks_assume(built: Any) -> None:
    from visualizers.site.pagechecks import anchors

    for page in built.content.project.pages:
        article = Article(built.html(page.url))
        assert {anchor for _, anchor, _ in article.headings} <= anchors(page) <= article.ids


@pytest.mark.parametrize("url", PAGES)
def test_every_link_leads_somewhere_below_any_path(built: Any, url: str) -> None:
    """All links within the site are relative, so the site works at the root and below a path alike."""
    files = set(files_below(built.out))
    article = Article(built.html(url))
    for target in article.targets:
        parts = urlsplit(target)
        if parts.scheme in ("https", "mailto", "data"):
            continue
        assert not parts.scheme, target
        assert not parts.netloc, target
        assert not parts.path.startswith("/"), target
        path = posixpath.normpath(posixpath.join(url, unquote(parts.path))) if parts.path else url.rstrip("/") or "."
        assert not path.startswith(".."), target
        file = next((f for f in (path, f"{path}/index.html".removeprefix("./")) if f in files), None)
        assert file, f"{target} on {url or 'the first page'} leads to {path}, which is no file"
        if parts.fragment and file.endswith(".html"):
            there = Article((built.out / file).read_text(encoding="utf-8"))
            assert unquote(parts.fragment) in there.ids, target


@pytest.mark.parametrize("url", PAGES)
def test_no_page_asks_a_stranger(built: Any, url: str) -> None:
    for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", built.html(url)):
        if 'rel="canonical"' not in tag and 'rel="next"' not in tag and 'rel="prev"' not in tag:
            assert "//" not in tag, tag


def test_the_page_for_lost_readers_has_absolute_links(built: Any) -> None:
    html = (built.out / "404.html").read_text(encoding="utf-8")
    base = built.content.project.site_url.split("://")[1].partition("/")[2]
    assert f'<a href="/{base}">' in html
    targets = [t for t in Article(html).targets if "://" not in t]
    assert targets
    assert all(t.startswith(("/", "#")) for t in targets)


def test_the_map_draws_every_page_and_its_needs(built: Any) -> None:
    article = Article(built.html("reference/map"))
    assert ("../../serving/paging/", "2.1 Paging & sharing") in article.links
    assert "needs The cache" in article.text
    (lines,) = re.findall(r'<g class="hb-map-lines">(.*?)</g>', built.html("reference/map"))
    assert re.findall(r'<path data-from="(.*?)" data-to="(.*?)"', lines) == [("cache", "paging")]


def test_the_first_page_leads_to_the_first_chapter(built: Any) -> None:
    html = built.html("")
    assert '<p class="hb-begin"><a href="basics/cache/">Begin with 1.1 The cache</a></p>' in html
    (link,) = re.findall(r"<a [^>]*md-footer__link--next[^>]*>", html)
    assert 'href="basics/cache/"' in link
    assert 'aria-label="Next: 1.1 The cache"' in link
    assert "Begin with [1.1 The cache](" in (built.out / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("url", PAGES)
def test_ids_of_a_page_are_unique(built: Any, url: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', built.html(url))
    assert [name for name in ids if ids.count(name) > 1] == []


def test_glossary_and_sources_name_the_pages(built: Any) -> None:
    glossary, sources = Article(built.html("reference/glossary")), Article(built.html("reference/sources"))
    assert {"block", "block-table"} <= glossary.ids
    assert ("../../serving/paging/", "2.1 Paging & sharing") in glossary.links
    assert {"paper", "sheet"} <= sources.ids
    assert ("../../serving/paging/", "2.1 Paging & sharing") in sources.links


def test_the_search_knows_the_text_but_not_the_figures(built: Any) -> None:
    index = json.loads((built.out / "search" / "search_index.json").read_text(encoding="utf-8"))
    docs = {doc["location"]: doc for doc in index["docs"]}
    assert "A block table" in " ".join(doc["text"] for doc in docs.values())
    assert "clipPath" not in str(docs)
    term = docs["reference/glossary/#block-table"]
    assert term["alone"]  # a result of its own, not a line of the glossary's
    assert term["title"] == "block table"
    for location in docs:
        path, _, anchor = location.partition("#")
        assert not anchor or anchor in Article(built.html(path.rstrip("/") or ".")).ids, location


def test_the_worker_reads_a_query_in_the_books_words(built: Any) -> None:
    (file,) = (built.out / "assets/javascripts/workers").glob("search.*.min.js")
    code = file.read_text(encoding="utf-8")
    assert code.startswith("// How the page's search reads a query")
    assert "self.hbQuery(e,...this.book)" in code
    with pytest.raises(SiteError, match="the theme's script has changed"):
        postprocess.search_worker("another script", "")


def test_a_header_is_read_or_is_none(built: Any) -> None:
    formula = '<math alttext="k" display="inline"><mi>k</mi></math>'
    row = f'<tr><th align="left"></th><th>{formula}</th><th>x</th></tr>'
    body = f"<html><head></head><body><table>{row}</table></body></html>"
    html = postprocess.page(body, built.content.facts["basics/cache.md"], built.content.project)
    assert f'<tr><td align="left"></td><th aria-label="k">{formula}</th><th>x</th></tr>' in html
