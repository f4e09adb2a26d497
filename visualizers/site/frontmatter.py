"""Reads the front matter of a page strictly: a missing, unknown or ill-typed field is a finding."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from visualizers.site import yaml_text
from visualizers.site.errors import Problem

_FENCE = re.compile(r"\A---\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_OUTLINE_ID = re.compile(r"\d{1,2}\.\d{1,2}\Z")
_MAX_DESCRIPTION = 200  # what a search result or an llms.txt line still shows


@dataclass(frozen=True)
class FrontMatter:
    """The fields of a page. ``notebook`` is None where there is none."""

    title: str
    description: str
    updated: datetime.date
    ids: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    notebook: str | None = None


_REQUIRED = ("title", "description", "ids", "updated", "depends_on", "sources")
_OPTIONAL = ("notebook",)
_HOME_REQUIRED = ("title", "description", "updated")


def split(text: str) -> tuple[str | None, str, int]:
    """The YAML between the two ``---`` lines (None if there is none), the body, and the body's first line."""
    match = _FENCE.match(text)
    if not match:
        return None, text, 1
    return match.group(1), text[match.end() :], text[: match.end()].count("\n") + 1


def parse(text: str, path: str, *, home: bool = False) -> tuple[FrontMatter | None, list[Problem]]:
    """The front matter of ``text`` and every finding about it. The home page need not say ids or sources."""
    raw, _, _ = split(text)
    required = _HOME_REQUIRED if home else _REQUIRED
    if raw is None:
        return None, [Problem(path, 1, f"no front matter: start with --- and the fields {', '.join(required)}")]
    try:
        fields = yaml_text.load(raw)
    except yaml_text.NotYamlError as error:
        return None, [Problem(path, error.line + 1, f"front matter {error}")]
    if not isinstance(fields, Mapping):
        return None, [Problem(path, 1, "front matter is not a list of fields: write one `name: value` a line")]
    found = _field_problems(fields, required, path, raw)
    if found:
        return None, found
    return (
        FrontMatter(
            title=fields["title"].strip(),
            description=fields["description"].strip(),
            updated=fields["updated"],
            ids=tuple(fields.get("ids") or ()),
            depends_on=tuple(fields.get("depends_on") or ()),
            sources=tuple(fields.get("sources") or ()),
            notebook=fields.get("notebook"),
        ),
        [],
    )


def _field_problems(fields: Mapping[str, Any], required: tuple[str, ...], path: str, raw: str) -> list[Problem]:
    def line_of(name: object) -> int:
        for number, line in enumerate(raw.split("\n"), start=2):
            if line.startswith(f"{name}:"):
                return number
        return 1

    known = (*_REQUIRED, *_OPTIONAL)
    found = [
        Problem(path, 1, f"front matter has no `{name}`: every page needs {', '.join(required)}")
        for name in required
        if name not in fields
    ]
    for name, value in fields.items():
        if name not in known:
            message = f"front matter has an unknown field `{name}`: known are {', '.join(known)}"
        else:
            message = _value_problem(name, value)
        if message:
            found.append(Problem(path, line_of(name), message))
    return found


def _value_problem(name: str, value: Any) -> str:
    """What is wrong with the value of a known field, or an empty string."""
    if name in ("title", "description"):
        if not isinstance(value, str) or not value.strip():
            return f"`{name}` is {value!r}: give it a text"
        if "\n" in value.strip():
            return f"`{name}` runs over several lines: one sentence on one line"
        if len(value) > _MAX_DESCRIPTION:
            return f"`{name}` has {len(value)} characters, the limit is {_MAX_DESCRIPTION}: shorten it"
    elif name == "updated":
        if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
            return f"`updated` is {value!r}: write a date such as 2026-11-29, without quotes"
    elif name == "notebook":
        if not isinstance(value, str) or not value.isidentifier():
            return f"`notebook` is {value!r}: give the stem of a file in notebooks/, such as block_manager"
    else:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return f"`{name}` is {value!r}: give a list of texts such as [a, b], numbers in quotes"
        if len(set(value)) != len(value):
            return f"`{name}` names the same thing twice: {value}"
        if name == "ids" and (bad := [item for item in value if not _OUTLINE_ID.match(item)]):
            return f'`ids` has {bad[0]!r}: an id is chapter.section, such as "5.4"'
    return ""
