"""Reads YAML that an author wrote: whatever cannot be read is one error with its line, never another exception."""

from __future__ import annotations

from typing import Any

import yaml


class NotYamlError(ValueError):
    """The text is no YAML; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"is not YAML: {message}")
        self.line = line


def load(text: str) -> Any:
    """The value of ``text``, of plain types only. Raises :class:`NotYamlError`."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotYamlError(str(getattr(error, "problem", error)), mark.line + 1 if mark else 1) from None
    except ValueError as error:  # a date that no calendar has
        raise NotYamlError(str(error), 1) from None
    except RecursionError:
        raise NotYamlError("it nests too deeply", 1) from None
