"""The figures as the site needs them: HTML for the page, Markdown for the twin, JSON for the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Figures(Protocol):
    """What a build asks of the visualizers. Names are kebab case; an unknown one raises ``LookupError``."""

    def names(self) -> tuple[str, ...]: ...

    def html(self, name: str, state: Mapping[str, str], base_url: str) -> str:
        """The printed figure with what the instant level needs, for a page whose root is at ``base_url``."""
        ...

    def markdown(self, name: str, state: Mapping[str, str], page_url: str) -> str:
        """The figure for an agent, with absolute links. Headings in it start at the third level."""
        ...

    def payload(self, name: str) -> Mapping[str, Any]:
        """The JSON of the instant level, served at ``figures/NAME.json``."""
        ...

    def values(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """The named values at the defaults, and their units."""
        ...
