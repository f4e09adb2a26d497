"""All figures as a site needs them: HTML for the page, Markdown for the twin, JSON for the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from visualizers import registry
from visualizers.contract import InputError
from visualizers.formats import heading
from visualizers.levels import describe
from visualizers.levels.cache import DataCache, default_folder
from visualizers.levels.grid import grid
from visualizers.levels.instant import payload
from visualizers.levels.markdown import figure_markdown
from visualizers.levels.page import figure_html
from visualizers.levels.snapshot import Snapshot


class ComputedFigures:
    """The registered visualizers, each computed once in this process.

    ``repo_url`` is where the code lies; ``folder`` where computed data are kept between processes.
    """

    def __init__(self, repo_url: str = "", folder: Path | None = None) -> None:
        self._repo_url = repo_url
        self._folder = folder or default_folder()
        # What a page embeds is drawn once, so that an edit of its text shows at once.
        self._html = cache(self._draw)
        self._markdown = cache(self._tell)
        self.payload = cache(self._payload)
        self._snapshot = cache(self._compute)

    def names(self) -> tuple[str, ...]:
        return tuple(stem.replace("_", "-") for stem in registry.stems())

    def html(self, name: str, state: Mapping[str, str], base_url: str) -> str:
        """The figure's element at ``state``, for a page from which the site's root is ``base_url``."""
        return self._html(name, json.dumps(dict(state), sort_keys=True), base_url)

    def inputs(self, name: str) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(given.name for given in registry.get(name).inputs)

    def refusal(self, name: str, state: Mapping[str, str]) -> str:
        """Why there is no such figure or no such state of it; an empty string where there is."""
        try:
            registry.get(name).parse(state)
        except (InputError, registry.UnknownVisualizerError) as error:
            return str(error)
        return ""

    def markdown(self, name: str, state: Mapping[str, str], page_url: str) -> str:
        """The figure's section of the Markdown twin; ``page_url`` is absolute."""
        return self._markdown(name, json.dumps(dict(state), sort_keys=True), page_url)

    def about(self, name: str, state: Mapping[str, str]) -> tuple[str, str, str]:
        """The figure's anchor at ``state``, its title and what it shows; nothing is computed."""
        visualizer = registry.get(name)
        return describe.figure_id(visualizer, visualizer.parse(state)), visualizer.title, visualizer.summary

    def values(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """The named values at the defaults, and their units."""
        snapshot = self._snapshot(name)
        return snapshot.default.data.values, snapshot.visualizer.units

    def meanings(self, name: str) -> Mapping[str, str]:
        """What each input of the figure means: figures of one page share the inputs of the same name."""
        return {i.name: heading(i.label, i.unit) for i in registry.get(name).inputs}

    def record(self, name: str, state: Mapping[str, object]) -> dict[str, Any]:
        """The figure at ``state`` as the command line prints it. Raises ``LookupError`` or ``InputError``."""
        snapshot = self._snapshot(name)
        found = snapshot.at(state, keep=False)  # who asks for many states must not fill the memory
        return describe.record(snapshot, found) | {"recorded_at": snapshot.recorded_at(found)}

    def grid(self, name: str) -> dict[str, Any]:
        """The figure at every state of its grid."""
        return grid(self._snapshot(name))

    def _compute(self, name: str) -> Snapshot:
        visualizer = registry.get(name)
        return Snapshot(visualizer, DataCache(visualizer, self._folder))

    def _draw(self, name: str, state: str, base_url: str) -> str:
        snapshot = self._snapshot(name)
        drawn = figure_html(snapshot, json.loads(state), base_url=base_url, repo_url=self._repo_url)
        snapshot.save()
        return drawn

    def _tell(self, name: str, state: str, page_url: str) -> str:
        snapshot = self._snapshot(name)
        told = figure_markdown(snapshot, json.loads(state), page_url=page_url, repo_url=self._repo_url)
        snapshot.save()
        return told

    def _payload(self, name: str) -> dict[str, Any]:
        return payload(self._snapshot(name))
