"""Building: whole or not at all, an edit at once, the same from both generators."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from small_book import NAMES, Article, CardboardFigures, write_book

from visualizers.site import files, generators
from visualizers.site.build import Builder
from visualizers.site.errors import PageError, SiteError
from visualizers.site.files import MARKER, files_below, swapped


def builder(root: Path, **options: Any) -> Builder:
    return Builder(root, CardboardFigures(), NAMES, **{"say": lambda _: None, **options})


def tree(folder: Path) -> dict[str, bytes]:
    return {file: (folder / file).read_bytes() for file in files_below(folder)}


def edit(root: Path, page: str, old: str, new: str) -> None:
    file = root / "handbook" / page
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_two_builds_are_equal(built: Any, tmp_path: Path) -> None:
    builder(built.root).build(tmp_path / "again")
    assert tree(tmp_path / "again") == tree(built.out)


def test_an_edit_changes_what_it_touches_and_gives_the_same_site(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    made = builder(root)
    made.build(out)
    before = tree(out)
    edit(root, "basics/cache.md", "## The problem\n\nText.", "## The problem\n\nAnother text, with a block.")
    assert made.update(out) == ("basics/cache/",)
    after = tree(out)
    assert {name for name in after if after[name] != before.get(name)} == {
        "basics/cache/index.html",
        "basics/cache.md",
        "basics/cache/index.md",
        "basics/cache/index.html.md",
        "bundles/basics.md",
        "llms.txt",  # the size of the page
        "llms-full.txt",
        "search/search_index.json",
    }
    builder(root).build(tmp_path / "fresh")
    fresh = tree(tmp_path / "fresh")
    index = "search/search_index.json"
    assert json.loads(after.pop(index)) == json.loads(fresh.pop(index))
    assert after == fresh


def test_an_edit_of_a_title_or_a_term_reaches_every_page(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    made = builder(root)
    made.build(out)
    edit(root, "basics/cache.md", "title: The cache", "title: The KV cache")
    made.update(out)
    assert "1.1 The KV cache" in (out / "serving" / "paging" / "index.html").read_text(encoding="utf-8")
    glossary = root / "handbook" / "glossary.yml"
    glossary.write_text(glossary.read_text().replace("A fixed number", "A certain number"), encoding="utf-8")
    assert set(made.update(out)) == {"serving/paging/", "reference/glossary/"}
    assert "A certain number" in (out / "serving" / "paging" / "index.html").read_text(encoding="utf-8")


def test_a_build_without_change_writes_nothing(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    made = builder(root)
    made.build(out)
    times = {file: (out / file).stat().st_mtime_ns for file in files_below(out)}
    assert made.update(out) == ()
    assert {file: (out / file).stat().st_mtime_ns for file in files_below(out)} == times


def test_a_broken_page_leaves_the_site_as_it_was(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    made = builder(root)
    made.build(out)
    before = tree(out)
    edit(root, "serving/paging.md", "[2 MiB]", "[3 MiB]")
    for attempt in (lambda: made.update(out), lambda: made.build(out)):
        with pytest.raises(PageError, match=r"handbook/serving/paging.md:\d+: \[3 MiB\] says 3 MiB"):
            attempt()
        assert tree(out) == before
    edit(root, "serving/paging.md", "[3 MiB]", "[2 MiB]")
    assert made.update(out) == ()


def test_a_full_disk_is_said_and_leaves_the_site_as_it_was(built: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out"
    builder(built.root).build(out)
    before = tree(out)
    real = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("llms.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(SiteError, match=r"no space left .* --out.*untouched"):
        builder(built.root).build(out)
    assert tree(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_build_leaves_the_site_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with swapped(out) as staging:
        (staging / "a").write_text("first")

    def interrupted() -> None:
        with swapped(out) as staging:
            (staging / "a").write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (out / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_build_does_not_replace_what_no_build_has_written(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(SiteError, match="not written by a build"), swapped(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    (tmp_path / "file").write_text("")
    with pytest.raises(SiteError, match="is a file"), swapped(tmp_path / "file"):
        pass


def test_what_someone_has_put_into_the_site_is_not_lost(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    make = builder(root)
    make.build(out)
    (root / "handbook" / "assets" / "new.txt").write_text("an asset that came with an edit")
    make.update(out)
    (out / ".DS_Store").write_bytes(b"litter")
    make.build(out)
    assert not (out / ".DS_Store").exists()
    for name in (".git/HEAD", "CNAME", "assets/mine.png"):
        mine = out / name
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        before = files_below(out)
        with pytest.raises(SiteError, match=f"holds {name}, which no build has written"):
            make.build(out)
        assert files_below(out) == before
        mine.unlink()
    make.build(out)


def test_a_link_to_the_site_stays_a_link(tmp_path: Path) -> None:
    root = write_book(tmp_path / "book")
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    for _ in range(2):
        builder(root).build((tmp_path / "link").resolve())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "index.html").is_file()


@pytest.mark.parametrize("gone", ["out", ".build/site", ".build/docs", ".build"])
def test_what_was_built_and_is_gone_is_built_again(gone: str, tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    make = builder(root)
    make.build(out)
    before = tree(out)
    shutil.rmtree(out if gone == "out" else root / gone)
    for old, new in (("Text.", "Text, edited."), ("Text, edited.", "Text.")):
        edit(root, "basics/cache.md", old, new)
        make.update(out)
    after = tree(out)
    index = "search/search_index.json"
    assert json.loads(after.pop(index)) == json.loads(before.pop(index))
    assert sorted(before) == sorted(after)
    assert [file for file in before if before[file] != after[file]] == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    root = write_book(tmp_path / "book")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SiteError, match=r"file cannot be written .*: give another folder with --out"):
        builder(root).build(tmp_path / "file" / "out")
    (root / ".build").write_text("a file where the build works")
    with pytest.raises(SiteError, match=r"\.build cannot be written .*: .*copy the project"):
        builder(root).build(tmp_path / "out")


def test_what_a_killed_build_left_goes_with_the_next(tmp_path: Path) -> None:
    root, out = write_book(tmp_path / "book"), tmp_path / "out"
    for name, age_s in (("old", 200_000.0), ("at-work", 0.0)):
        left = tmp_path / f".out-new-{name}"
        left.mkdir()
        then = time.time() - age_s
        os.utime(left, (then, then))
    builder(root).build(out)
    assert not (tmp_path / ".out-new-old").exists()
    assert (tmp_path / ".out-new-at-work").exists()


def test_two_builds_of_one_project_do_not_meet(built: Any, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in "ab"]
    said: list[str] = []
    threads = [Thread(target=builder(built.root, say=said.append).build, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree(outs[0]) == tree(outs[1]) == tree(built.out)


def test_notebooks_are_placed_and_kept(built: Any, tmp_path: Path) -> None:
    notebooks = tmp_path / "exported"
    notebooks.mkdir()
    (notebooks / "blocks.html").write_text("<marimo>")
    builder(built.root).build(tmp_path / "out", notebooks)
    assert (tmp_path / "out" / "notebooks" / "blocks.html").read_text() == "<marimo>"


def test_the_address_of_the_site_can_be_given(built: Any, tmp_path: Path) -> None:
    builder(built.root, site_url="http://127.0.0.1:8000").build(tmp_path / "out")
    html = (tmp_path / "out" / "basics" / "cache" / "index.html").read_text(encoding="utf-8")
    assert '<link rel="canonical" href="http://127.0.0.1:8000/basics/cache/">' in html
    assert "http://127.0.0.1:8000/basics/cache/" in (tmp_path / "out" / "sitemap.xml").read_text()
    assert '<a href="/">' in (tmp_path / "out" / "404.html").read_text()
    assert "ErrorDocument 404 /404.html" in (tmp_path / "out" / ".htaccess").read_text()


def test_both_generators_give_the_same_site(built: Any, tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    out = tmp_path / "out"
    builder(built.root, generator=generators.get("zensical")).build(out)

    def pages(folder: Path) -> list[str]:
        # The theme's own files, and the index of the search, are the generator's business.
        return [f for f in files_below(folder) if not re.match(r"assets/(javascripts|stylesheets|images)/|search", f)]

    assert pages(out) == pages(built.out)
    for file in pages(out):
        if file.endswith("index.html"):
            ours, theirs = (Article((d / file).read_text(encoding="utf-8")) for d in (built.out, out))
            assert theirs.headings == ours.headings, file
            assert theirs.links == ours.links, file
            assert theirs.figures == ours.figures, file
            assert theirs.text.split() == ours.text.split(), file
        elif file not in ("sitemap.xml", "404.html", MARKER):
            assert (out / file).read_bytes() == (built.out / file).read_bytes(), file


def test_an_unknown_generator_is_refused() -> None:
    with pytest.raises(SiteError, match="choose mkdocs or zensical"):
        generators.get("jekyll")


def test_what_the_generator_warns_of_stops_the_build(tmp_path: Path) -> None:
    root = write_book(tmp_path / "book")
    edit(root, "basics/cache.md", "Nothing.", "[Nothing](nowhere.md).")
    with pytest.raises(SiteError, match=r"nowhere\.md"):
        builder(root).build(tmp_path / "out")


def test_files_are_replaced_whole_and_only_when_they_differ(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.txt"
    assert files.write(file, "x")
    stamp = file.stat().st_mtime_ns
    time.sleep(0.01)
    assert not files.write(file, b"x")
    assert file.stat().st_mtime_ns == stamp
    assert files.write(file, "y")
    assert [p.name for p in file.parent.iterdir()] == ["b.txt"]
