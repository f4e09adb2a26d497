"""Where a catalogued fact is from and when it was checked, and the errors of a data file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class CatalogError(ValueError):
    """A data file of the catalogue, or a config given to it, that cannot be used; the message names the field."""


class UnknownEntryError(LookupError):
    """No entry of that slug: the message lists those that are near, or all."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Source:
    """``url`` of the publisher's own page or file, None for a measurement; ``checked`` the day; ``how`` by or
    against what."""

    url: str | None
    checked: datetime.date
    how: str

    @classmethod
    def parse(cls, raw: Any, where: str) -> Source:
        fields = take(raw, where, {"url": str, "checked": str, "how": str})
        if not fields["url"].startswith("https://"):
            raise CatalogError(f"{where}: url is {fields['url']!r}, give an https address")
        try:
            checked = datetime.date.fromisoformat(fields["checked"])
        except ValueError:
            raise CatalogError(f"{where}: checked is {fields['checked']!r}, give a date such as 2026-11-29") from None
        return cls(fields["url"], checked, fields["how"])


def take(
    raw: Any, where: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of a JSON object, each of its type, none missing and none left over."""
    optional = optional or {}
    if not isinstance(raw, Mapping):
        raise CatalogError(f"{where}: {type(raw).__name__} where an object is needed")
    for name in required:
        if name not in raw:
            raise CatalogError(f"{where}: the field {name} is missing")
    kinds = {**required, **optional}
    for name, value in raw.items():
        if name not in kinds:
            raise CatalogError(f"{where}: the field {name} is unknown, known are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise CatalogError(f"{where}: {name} is {value!r}, which has the wrong type")
    return dict(raw)
