"""The only source of colours: one colour is one quantity through the whole book, light and dark.

Charts name a colour with :func:`colour`, which gives ``var(--hb-kv)``: an SVG on a page then follows the
theme without a script. What leaves the page (a downloaded SVG or PNG) gets plain colours on the way.

The quantities were chosen by search: against the page each has a contrast of at least 3:1 (text 4.5:1),
and each pair stays apart for trichromats and in simulated deuteranopia and protanopia. The tests in
``tests/visualizers/test_palette.py`` hold the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Theme = Literal["light", "dark"]
PREFIX = "--hb-"

# What a colour stands for, through the whole book: (light, dark).
_QUANTITY_COLOURS = {
    "weights": ("#3368a5", "#6ebfff"),
    "kv": ("#d67b00", "#f48d00"),
    "activations": ("#c061ee", "#97539e"),
    "compute": ("#d5094a", "#fb7d78"),
    "bandwidth": ("#00a0a8", "#62eee9"),
    "waiting": ("#523b1e", "#e3d7c3"),  # and idle
    "prefill": ("#3f1cc4", "#7c7ff0"),
    "decode": ("#1e754f", "#a4f08c"),
    "draft": ("#596001", "#957416"),  # speculated
    "shared": ("#7d2a61", "#d38db8"),  # between requests
    "free": ("#7f8083", "#7b7d84"),  # and unused
    "cached": ("#bb8678", "#996157"),  # may be evicted
}

# A categorical series for things of one kind that only need telling apart: requests, models, experts.
_SERIES_COLOURS = {
    "series-1": ("#0062b3", "#3482d6"),
    "series-2": ("#962907", "#c46014"),
    "series-3": ("#3e654d", "#6c8d68"),
    "series-4": ("#b48c00", "#ccb527"),
    "series-5": ("#9d80e7", "#c2b1ff"),
    "series-6": ("#639ca1", "#a9e4e3"),
    "series-7": ("#6c4866", "#a16e8a"),
    "series-8": ("#ba8377", "#f4b2a1"),
}

# The furniture of figures. "page" and "surface" are backgrounds, "text" and "muted" are text on them.
_INTERFACE_COLOURS = {
    "page": ("#ffffff", "#1e2129"),
    "surface": ("#f6f7f9", "#262a34"),
    "text": ("#1f2328", "#e6e8ec"),
    "muted": ("#5a636e", "#a4adb9"),
    "axis": ("#7d8590", "#7d8692"),
    "grid": ("#e3e6ea", "#343a46"),
    "accent": ("#2c5d9b", "#7fc4ff"),
    "on-accent": ("#ffffff", "#10131a"),
    "warning": ("#8a4b00", "#ffc26b"),
}

_INKS = ("#ffffff", "#0b0d12")


def _luminance(value: str) -> float:
    """Relative luminance of WCAG 2, of ``#rrggbb``."""
    parts = (int(value[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _ink_on(ground: str) -> str:
    """White or black, whichever stands out more from ``ground``."""
    light = 1.05 / (_luminance(ground) + 0.05)
    dark = (_luminance(ground) + 0.05) / (_luminance(_INKS[1]) + 0.05)
    return _INKS[0] if light >= dark else _INKS[1]


_FILLS = {**_QUANTITY_COLOURS, **_SERIES_COLOURS}
_INK_COLOURS = {f"on-{name}": (_ink_on(pair[0]), _ink_on(pair[1])) for name, pair in _FILLS.items()}
_ALL = {**_FILLS, **_INK_COLOURS, **_INTERFACE_COLOURS}
LIGHT: Mapping[str, str] = {name: pair[0] for name, pair in _ALL.items()}
DARK: Mapping[str, str] = {name: pair[1] for name, pair in _ALL.items()}
QUANTITIES = tuple(_QUANTITY_COLOURS)
SERIES = tuple(_SERIES_COLOURS)


def colour(name: str) -> str:
    """``var(--hb-NAME)`` for a chart's fill or stroke; an unknown name lists those there are."""
    if name not in _ALL:
        raise ValueError(f"the palette has no colour {name!r}: choose from {', '.join(_ALL)}")
    return f"var({PREFIX}{name})"


def ink(name: str) -> str:
    """The colour of text that stands on a mark of the colour ``name``, a quantity's or a series'."""
    return colour(f"on-{name}")


def series(index: int) -> str:
    """The colour of the ``index``-th thing of a kind, from 0; after eight they come round again."""
    return colour(SERIES[index % len(SERIES)])


def css() -> str:
    """The style sheet that defines the variables for both themes.

    A page under mkdocs-material says its theme by ``data-md-color-scheme``; elsewhere the reader's
    system does. What is printed on paper is light.
    """

    def block(selector: str, colours: Mapping[str, str], scheme: Theme) -> str:
        lines = "".join(f"  {PREFIX}{name}: {value};\n" for name, value in colours.items())
        return f"{selector} {{\n  color-scheme: {scheme};\n{lines}}}\n"

    dark_system = block(":root:not(:has([data-md-color-scheme]))", DARK, "dark")
    return (
        block(":root, [data-md-color-scheme=default]", LIGHT, "light")
        + f"@media (prefers-color-scheme: dark) {{\n{dark_system}}}\n"
        + "@media screen {\n"
        + block("[data-md-color-scheme=slate]", DARK, "dark")
        + "}\n"
    )
