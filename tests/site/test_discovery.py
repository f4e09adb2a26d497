"""By what programs find their way: robots, site map, feed, links in headers, Markdown for lost readers."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import yaml
from asgi_asks import ask
from small_book import NAMES, CardboardFigures, write_book

from visualizers.site.build import Builder
from visualizers.site.static import Site

ATOM = "{http://www.w3.org/2005/Atom}"


def read(built: Any, path: str) -> str:
    return str((built.out / path).read_text(encoding="utf-8"))


def test_robots_may_read_everything_and_find_the_site_map(built: Any) -> None:
    assert read(built, "robots.txt").endswith(f"Sitemap: {built.content.project.site_url}sitemap.xml\n")


def test_the_site_map_has_the_dates_of_the_pages(built: Any) -> None:
    found = dict(re.findall(r"<loc>(.*?)</loc>\s*<lastmod>(.*?)</lastmod>", read(built, "sitemap.xml")))
    root = built.content.project.site_url
    assert found[f"{root}basics/cache/"] == "2026-11-28"
    assert found[f"{root}serving/paging/"] == "2026-11-29"
    assert found[f"{root}reference/map/"] == "2026-11-29"  # made of the others: the newest


def test_the_feed_lists_the_pages_newest_first(built: Any) -> None:
    feed = ET.fromstring(read(built, "feed.xml"))  # noqa: S314 - our own
    entries = feed.findall(f"{ATOM}entry")
    assert len(entries) == len(built.content.project.pages)
    dates = [entry.findtext(f"{ATOM}updated") for entry in entries]
    assert dates == sorted(dates, reverse=True)
    assert all(entry.findtext(f"{ATOM}summary") for entry in entries)
    assert 'type="application/atom+xml" title="Changes" href="../../feed.xml"' in built.html("basics/cache")


def test_a_twin_points_to_the_list_of_all_pages(built: Any) -> None:
    for path in ("serving/paging.md", "index.md", "reference/glossary.md"):
        fields = yaml.safe_load(read(built, path).split("---")[1])
        assert fields["all_pages"] == f"{built.content.project.site_url}llms.txt"


def test_the_list_of_pages_says_sizes_and_dates(built: Any) -> None:
    line = next(x for x in read(built, "llms.txt").split("\n") if "serving/paging.md" in x)
    found = re.search(r"\(about ([\d,]+) tokens, 2026-11-29\)$", line)
    assert found
    size = len((built.out / "serving/paging.md").read_bytes()) / 4
    assert abs(int(found[1].replace(",", "")) - size) <= size * 0.05 + 1


def test_the_changelog_is_a_page_where_there_is_one(built: Any, tmp_path: Any) -> None:
    assert not (built.out / "reference/changelog").exists()
    root = write_book(tmp_path / "book")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [1.0] - 2026-12-01\n\n- First.\n", encoding="utf-8")
    Builder(root, CardboardFigures(), NAMES, say=lambda _: None).build(tmp_path / "out")
    assert "First." in (tmp_path / "out/reference/changelog/index.html").read_text(encoding="utf-8")
    assert "## [1.0] - 2026-12-01" in (tmp_path / "out/reference/changelog.md").read_text(encoding="utf-8")


def test_a_published_site_may_be_read_from_anywhere(built: Any) -> None:
    assert "Access-Control-Allow-Origin: *" in read(built, "_headers")
    assert 'Header set Access-Control-Allow-Origin "*"' in read(built, ".htaccess")
    assert not [h for h in ask(Site(built.out), "/basics/cache/").headers if h.startswith("access-control")]


def test_grids_are_published_as_plain_json(built: Any) -> None:
    assert json.loads(read(built, "figures/blocks.grid.json"))["rows"] == [[16, 64]]


@pytest.mark.parametrize(
    ("path", "accept", "markdown"),
    [
        ("/nowhere.md", "*/*", True),
        ("/nowhere/", "text/markdown", True),
        ("/nowhere/", "text/html", False),
        ("/nowhere.json", "*/*", False),
    ],
)
def test_who_asks_for_markdown_is_lost_in_markdown(built: Any, path: str, accept: str, markdown: bool) -> None:
    answer = ask(Site(built.out), path, accept=accept)
    assert answer.status == 404
    assert answer.headers["content-type"].startswith("text/markdown" if markdown else "text/html")
    assert (f"{built.content.project.site_url}llms.txt" in answer.body.decode()) is markdown
    assert answer.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", W/{}', "*"])
def test_what_a_client_has_is_not_sent_again(built: Any, form: str) -> None:
    site = Site(built.out)
    tag = ask(site, "/llms.txt").headers["etag"]
    assert ask(site, "/llms.txt", if_none_match=form.format(tag)).status == 304
    assert ask(site, "/nowhere", if_none_match="*").status == 404
    assert ask(site, "/llms.txt", if_none_match='W/"other"').status == 200


@pytest.mark.parametrize(
    ("path", "twin"), [("/", "/index.md"), ("/basics/cache/", "/basics/cache.md"), ("/basics/cache.md", None)]
)
def test_headers_link_to_the_markdown_and_to_all_pages(built: Any, path: str, twin: str | None) -> None:
    links = ask(Site(built.out), path).headers["link"]
    assert '</llms.txt>; rel="help"' in links
    assert (f'<{twin}>; rel="alternate"; type="text/markdown"' in links) is (twin is not None)
    if twin:
        assert ask(Site(built.out), twin).status == 200
