"""What a build asks of the figures; ``visualizers.levels.computed.ComputedFigures`` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Figures(Protocol):
    """Names are kebab case; an unknown one raises ``LookupError``, a bad state ``ValueError``."""

    def names(self) -> tuple[str, ...]:
        """All figures there are."""
        ...

    def html(self, name: str, state: Mapping[str, str], base_url: str) -> str:
        """The figure for a page from which the site's root is ``base_url``."""
        ...

    def inputs(self, name: str) -> tuple[str, ...]:
        """The names of its inputs."""
        ...

    def refusal(self, name: str, state: Mapping[str, str]) -> str:
        """Why there is no such figure or no such state of it; an empty string where there is."""
        ...

    def markdown(self, name: str, state: Mapping[str, str], page_url: str) -> str:
        """The figure for an agent, with absolute links. Its headings start at the third level."""
        ...

    @property
    def payload(self) -> Callable[[str], Mapping[str, Any]]:
        """From a name to the JSON of the instant level, served at ``figures/NAME.json``."""
        ...

    def about(self, name: str, state: Mapping[str, str]) -> tuple[str, str, str]:
        """The figure's anchor on a page, its title and what it shows, without computing it."""
        ...

    def meanings(self, name: str) -> Mapping[str, str]:
        """What each input of the figure means: its label and its unit."""
        ...

    def record(self, name: str, state: Mapping[str, object]) -> Mapping[str, Any]:
        """The figure at ``state`` as one JSON object."""
        ...

    def grid(self, name: str) -> Mapping[str, Any]:
        """The figure at every state that is computed, served at ``figures/NAME.grid.json``."""
        ...

    def values(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """The named values at the defaults, and their units."""
        ...
