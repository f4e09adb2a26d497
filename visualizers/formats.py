"""The closed set of number formats of the handbook; ``handbook/assets/js/formats.js`` is its twin.

Both round the exact value of the double half away from zero, so that a number printed at build,
shown in the browser and listed for an agent is the same string. A test compares the two in Chromium.

==============  =========================================  ====================
format          meaning                                    example
==============  =========================================  ====================
``""``          text as it is; whole numbers like ``int``,  ``8,192``, ``3.14``
                others like ``sig3``
``int``         whole number with thousands                ``131,072``
``sig2``..4     significant digits with thousands          ``24``, ``3.35``
``fixed0``..3   digits after the point with thousands      ``12.50``
``percent``     of a fraction, whole (``percent1``: one     ``37%``, ``99.5%``
                digit after the point)
``bytes``       bytes in KiB, MiB, GiB ... (``bytes10``:    ``128 KiB``, ``141 GB``
                in kB, MB, GB ...), three digits
``seconds``     seconds in s, ms, µs or ns, three digits   ``41.7 ms``
``compact``     thousands as k, M, G, T, three digits      ``1.61 T``
==============  =========================================  ====================

A sentence names values as ``{size|bytes}``, and words that a value decides as ``{size|int?token:tokens}``: the first
where it reads 1, the second elsewhere. Of three the first is for 0, and ``#`` stands for the value itself.

Zeros after the point are kept only where the value was rounded: ``1 GiB`` is exact, ``1.00 GiB`` is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

BINARY_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
DECIMAL_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
COMPACT_UNITS = ("", "k", "M", "G", "T", "P", "E")
TIME_UNITS = ("s", "ms", "µs", "ns")

_PLURAL = re.compile(r"(?<=[a-z]{3})s$")
_FIELD = re.compile(r"\{([a-z][a-z0-9_]*)(?:\|([a-z0-9]*))?(?:\?([^{}]*))?\}")


# A double has at most 309 digits before the point and the formats at most 3 after it.
_EXACT = Context(prec=400, rounding=ROUND_HALF_UP)


def _round(x: Decimal, exponent: int) -> Decimal:
    """``x`` rounded half away from zero to a multiple of ten to the ``exponent``."""
    return x.quantize(Decimal((0, (1,), exponent)), context=_EXACT)


def _fixed(x: float, digits: int) -> str:
    """``digits`` after the point with thousands, half away from zero, never ``-0``."""
    rounded = _round(Decimal(x), -digits)
    return f"{rounded if rounded else abs(rounded):,.{digits}f}"


def _significant(x: float, digits: int) -> str:
    """``digits`` significant digits with thousands; zeros after the point go where nothing was rounded."""
    if x == 0:
        return "0"
    exact = Decimal(x)
    last = exact.adjusted() - digits + 1
    rounded = _round(exact, last)
    if rounded.adjusted() > exact.adjusted():  # 9.996 became 10.00: one digit after the point fewer
        last += 1
    text = f"{rounded:,.{max(0, -last)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and float(rounded) == x else text


def _scaled(x: float, base: int, units: tuple[str, ...]) -> str:
    """Three digits in the largest unit in which the value is at least 1 once it is rounded."""
    step = 0
    while step < len(units) - 1 and abs(x) >= base - 0.5:
        x /= base
        step += 1
    # Between 999.5 and 1,023.5 of a binary unit the three digits would hide the last one: show all four.
    text = _fixed(x, 0) if abs(x) >= 999.5 else _significant(x, 3)
    unit = units[step]
    return f"{text} {'byte' if unit == 'bytes' and text == '1' else unit}".rstrip()


def _seconds(x: float) -> str:
    step = 0
    while step < len(TIME_UNITS) - 1 and x != 0 and abs(x) < 0.9995:
        x *= 1000
        step += 1
    return f"{_significant(x, 3)} {TIME_UNITS[step]}"


def _plain(x: float) -> str:
    return _fixed(x, 0) if x == math.floor(x) else _significant(x, 3)


FORMATS: Mapping[str, Callable[[float], str]] = {
    "": _plain,
    "int": lambda x: _fixed(x, 0),
    "sig2": lambda x: _significant(x, 2),
    "sig3": lambda x: _significant(x, 3),
    "sig4": lambda x: _significant(x, 4),
    "fixed0": lambda x: _fixed(x, 0),
    "fixed1": lambda x: _fixed(x, 1),
    "fixed2": lambda x: _fixed(x, 2),
    "fixed3": lambda x: _fixed(x, 3),
    "percent": lambda x: _fixed(x * 100, 0) + "%",
    "percent1": lambda x: _fixed(x * 100, 1) + "%",
    "bytes": lambda x: _scaled(x, 1024, BINARY_UNITS),
    "bytes10": lambda x: _scaled(x, 1000, DECIMAL_UNITS),
    "seconds": _seconds,
    "compact": lambda x: _scaled(x, 1000, COMPACT_UNITS),
}


def format_value(value: Any, name: str = "") -> str:
    """``value`` as text in the format ``name``. Text passes unchanged; truth values are yes and no."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: choose from {', '.join(f or repr(f) for f in FORMATS)}")
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number and has no text in the format {name!r}")
    return FORMATS[name](number)


def with_unit(value: Any, unit: str, name: str = "") -> str:
    """``value`` and its unit: ``8,192 tokens``, ``1 token``. A value that is text has none."""
    text = format_value(value, name)
    if not unit or isinstance(value, str):
        return text
    return f"{text} {_PLURAL.sub('', unit) if text == '1' else unit}"


def heading(label: str, unit: str) -> str:
    """What stands above a column: ``Size (GiB)``."""
    return f"{label} ({unit})" if unit else label


def fields(template: str) -> list[tuple[str, str]]:
    """The ``(value, format)`` pairs that a sentence template names, in order."""
    return [(m[1], m[2] or "") for m in _FIELD.finditer(template)]


def _words(forms: list[str], value: str) -> str:
    """The form that the value decides: of one and many, or of none, one and many."""
    if len(forms) not in (2, 3):
        raise ValueError(f"{':'.join(forms)!r} needs two forms, for 1 and for more, or three, the first for 0")
    *none, one, many = forms
    form = none[0] if none and value == "0" else one if value == "1" else many
    return form.replace("#", value)


def fill(
    template: str,
    values: Mapping[str, Any],
    wrap: Callable[[str], str] = str,
    text: Callable[[str], str] = str,
) -> str:
    """``template`` with each ``{value|format}`` filled; ``wrap`` dresses values, ``text`` the rest."""
    out, end = [], 0
    for match in _FIELD.finditer(template):
        name, style = match[1], match[2] or ""
        if name not in values:
            raise ValueError(f"the sentence names {name!r}, which is no value: there are {', '.join(values)}")
        value = format_value(values[name], style)
        dressed = wrap(value) if match[3] is None else text(_words(match[3].split(":"), value))
        out += [text(template[end : match.start()]), dressed]
        end = match.end()
    rest = template[end:]
    if "{" in rest or "}" in rest or any("{" in part for part in out[::2]):
        raise ValueError(f"a field of the sentence cannot be read (write {{value|format}}): {template!r}")
    return "".join(out) + text(rest)
