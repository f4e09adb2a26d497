"""Visualizers are found by their files, and an unknown name gets the list."""

from __future__ import annotations

import pytest

from visualizers import registry


def test_each_is_found_by_its_name_and_by_its_stem():
    assert registry.stems() == tuple(sorted(registry.stems()))
    for visualizer in registry.all():
        assert registry.get(visualizer.name) is visualizer is registry.get(visualizer.stem)


def test_the_modules_around_them_are_none():
    assert not {"contract", "charts", "registry", "snapshot", "site"} & set(registry.stems())


def test_an_unknown_name_gets_the_list():
    with pytest.raises(registry.UnknownVisualizerError, match="there is no visualizer 'nothing': choose from "):
        registry.get("nothing")
