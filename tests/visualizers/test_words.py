"""Words as a picture: no line is wider than the figure, every word is drawn once, in order, whatever the width."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import vl_convert

from visualizers.levels import charts
from visualizers.levels.words import LINE_PX, LONGEST, Look, flow, measured

TEXT = ["The", "report", "of", "the", "Secretary", "shows", "that", "a", "people", "in", "Agriculture", "pays"]
LOOKS = {"plain": Look(), "struck": Look("free", "muted", struck=True)}


def drawn(width: int, words: list[str]) -> str:
    records = [
        {**measured(f" {word}"), "kind": "struck" if word == "Secretary" else "plain", "group": i}
        for i, word in enumerate(words)
    ]
    spec = charts.spec(flow("words", LOOKS, title="Words"))
    return str(vl_convert.vegalite_to_svg(json.dumps(charts.sized(spec, {"words": records}, width))))


def places(svg: str, words: list[str]) -> list[tuple[str, float, float]]:
    """Words with the middle of each and its line."""
    found = re.findall(r'<text[^>]*transform="translate\(([\d.-]+),([\d.-]+)\)"[^>]*>([^<]*)</text>', svg)
    return [(text, float(x), float(y)) for x, y, text in found if text in words]


@pytest.mark.parametrize("width", [320, 340, 500, 700])
def test_lines_break_before_the_edge_and_every_word_stands_once(width: int) -> None:
    words = TEXT * 3
    found = places(drawn(width, words), words)
    assert [text for text, _, _ in found] == words
    for (text, x, y), (_, next_x, next_y) in pairwise(found):
        room = measured(f" {text}")["px"] / 2
        assert room - 3 <= x <= width - room
        # On the same line each word begins where the one before it ends; else the next line begins.
        assert (next_y == y + LINE_PX and next_x < x) or (next_y == y and next_x - x >= room)
    lines = len({y for _, _, y in found})
    assert lines >= sum(measured(f" {w}")["px"] for w in words) // width


def test_a_struck_word_has_a_line_through_it() -> None:
    assert drawn(500, TEXT).count("<line") == TEXT.count("Secretary") == 1


def test_what_nobody_sees_is_marked_and_what_is_too_long_is_cut() -> None:
    assert [measured(text)["text"] for text in (" the", "\n", " ", "a b")] == ["the", "⏎", "·", "a·b"]
    cut = measured(" " + "x" * 40)
    assert len(cut["text"]) == LONGEST
    assert cut["text"].endswith("…")
    assert measured(" wwww")["px"] > measured(" iiii")["px"]
