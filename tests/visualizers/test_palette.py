"""The palette is legible on the page and its quantities stay apart, for colour-blind readers as well."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from visualizers import palette

THEMES = ("light", "dark")

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def hex_colour(name: str, theme: str) -> str:
    return {"light": palette.LIGHT, "dark": palette.DARK}[theme][name]


def linear(colour: str) -> np.ndarray:
    """The colour as linear RGB, 0 to 1."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2, 1 to 21."""
    high, low = sorted((float(XYZ[1] @ linear(c)) for c in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> tuple[float, float, float]:
    """CIE L*a*b* of linear RGB under D65."""
    xyz = XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return float(116 * y - 16), float(500 * (x - y)), float(200 * (y - z))


def ciede2000(one: tuple[float, float, float], two: tuple[float, float, float]) -> float:
    """The colour difference of Sharma, Wu and Dalal 2005, in units of which one is just noticeable."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    mean_c7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    g = 1.5 - 0.5 * np.sqrt(mean_c7 / (mean_c7 + 25.0**7))
    a1, a2 = a1 * g, a2 * g
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    total = h1 + h2
    if c1 * c2 and abs(h1 - h2) > 180:
        total += 360 if total < 360 else -360
    h = total / 2 if c1 * c2 else total
    lightness, c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * np.cos(np.radians(h - 30)) + 0.24 * np.cos(np.radians(2 * h))
    t += 0.32 * np.cos(np.radians(3 * h + 6)) - 0.20 * np.cos(np.radians(4 * h - 63))
    s_l = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    s_c, s_h = 1 + 0.045 * c, 1 + 0.015 * c * t
    turn = np.radians(60 * np.exp(-(((h - 275) / 25) ** 2)))
    r = -np.sin(turn) * 2 * np.sqrt(c**7 / (c**7 + 25.0**7))
    d_l, d_c = (l2 - l1) / s_l, (c2 - c1) / s_c
    d_h = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(dh / 2)) / s_h
    return float(np.sqrt(d_l**2 + d_c**2 + d_h**2 + r * d_c * d_h))


def closest(names: tuple[str, ...], theme: str, sight: np.ndarray) -> tuple[float, str, str]:
    """The pair of colours with the smallest difference, as it looks through ``sight``."""
    seen = {n: lab(sight @ linear(hex_colour(n, theme))) for n in names}
    return min((ciede2000(seen[a], seen[b]), a, b) for a, b in combinations(names, 2))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [  # rows of the test data published with the formula
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((90.8027, -2.0831, 1.4410), (91.1528, -1.6435, 0.0447), 1.4441),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_formula_gives_the_published_values(one, two, expected):
    assert ciede2000(one, two) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("names", [palette.QUANTITIES, palette.SERIES], ids=["quantities", "series"])
def test_marks_stand_out_from_the_page_and_from_each_other(theme, names):
    page = hex_colour("page", theme)
    for name in names:
        assert contrast(hex_colour(name, theme), page) >= 3, name
    assert closest(names, theme, np.eye(3)) > (18,)
    assert closest(names, theme, DEUTERANOPIA) > (10,)
    assert closest(names, theme, PROTANOPIA) > (10,)


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_legible(theme):
    for ink in ("text", "muted", "accent", "warning"):
        for ground in ("page", "surface"):
            assert contrast(hex_colour(ink, theme), hex_colour(ground, theme)) >= 4.5, ink
    assert contrast(hex_colour("on-accent", theme), hex_colour("accent", theme)) >= 4.5
    assert contrast(hex_colour("axis", theme), hex_colour("page", theme)) >= 3


def test_every_quantity_has_a_colour_in_the_style_sheet_of_both_themes():
    sheet = palette.css()
    for name in (*palette.QUANTITIES, *palette.SERIES):
        assert sheet.count(f"--hb-{name}: {hex_colour(name, 'light')};") == 1
        assert sheet.count(f"--hb-{name}: {hex_colour(name, 'dark')};") == 2


def test_an_unknown_colour_gets_the_list():
    assert palette.colour("kv") == "var(--hb-kv)"
    with pytest.raises(ValueError, match=r"no colour 'teal': choose from weights, kv"):
        palette.colour("teal")


def test_series_comes_round():
    assert palette.series(8) == palette.series(0) != palette.series(1)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [*palette.QUANTITIES, *palette.SERIES])
def test_text_on_a_mark_can_be_read(name: str, theme: str) -> None:
    found = palette.ink(name).removeprefix("var(--hb-").removesuffix(")")
    assert contrast(hex_colour(found, theme), hex_colour(name, theme)) >= 4.4
