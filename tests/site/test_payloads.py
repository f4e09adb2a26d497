"""The figures' JSON is made once, and anew when what it shows has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from small_book import CardboardFigures

from visualizers.site.payloads import Payloads

NAME = "kv-cache-size"  # a figure of the book: its sources are part of the key


class Counted(CardboardFigures):
    """Counts how often a payload is asked of it."""

    def __init__(self, held: int) -> None:
        self.held, self.asked = held, 0

    def payload(self, name: str) -> Mapping[str, Any]:
        self.asked += 1
        return {"name": name, "held": self.held}

    def values(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return {"held": self.held}, {"held": "KiB"}


def test_a_payload_is_made_once_for_all_processes(tmp_path: Path) -> None:
    first, second = Counted(64), Counted(64)
    texts = [Payloads(figures, tmp_path).text(NAME) for figures in (first, second)]
    assert texts == ['{"name":"kv-cache-size","held":64}'] * 2
    assert (first.asked, second.asked) == (1, 0)


def test_other_values_make_another_payload_and_drop_the_old(tmp_path: Path) -> None:
    Payloads(Counted(64), tmp_path).text(NAME)
    (other,) = tmp_path.iterdir()
    assert '"held":65' in Payloads(Counted(65), tmp_path).text(NAME)
    (kept,) = tmp_path.iterdir()
    assert kept != other


def test_without_a_folder_a_payload_lives_in_memory() -> None:
    figures = Counted(64)
    payloads = Payloads(figures)
    assert payloads.text("any") == payloads.text("any")
    assert figures.asked == 1
