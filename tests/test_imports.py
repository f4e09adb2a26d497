"""The modules of the engine have no cycle, type-checking imports included, and its packages point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "minillm"

# What a package may not import, directly or for types alone.
FORBIDDEN = {
    "minillm.core": ["minillm.backends", "minillm.ops", "minillm.models", "minillm.loaders", "minillm.router"],
    "minillm.grammar": ["minillm.backends", "minillm.speculate", "minillm.router", "minillm.transfer"],
    "minillm.ops": ["minillm.models", "minillm.loaders", "minillm.backends"],
    "minillm.loaders": ["minillm.models", "minillm.ops", "minillm.core", "minillm.backends"],
    "minillm.models": ["minillm.backends"],
    "minillm.costs": ["minillm.core", "minillm.backends", "minillm.models", "minillm.ops", "minillm.loaders"],
}


def modules(folder: Path = PACKAGE) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(found: dict[str, Path]) -> dict[str, set[str]]:
    """What each module imports of the others, wherever in it the import stands."""
    edges: dict[str, set[str]] = {}
    for name, path in found.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: imports are absolute"
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {one if one in found else str(node.module) for one in whole}
        edges[name] = {target for target in targets if target in found and target != name}
    return edges


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; none if there are no such."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for target in sorted(edges[name]):
            if found := visit(target):
                return found
        path.pop()
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name))), [])


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle(imports(modules())) == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_point_one_way(package: str) -> None:
    for name, targets in imports(modules()).items():
        if name == package or name.startswith(f"{package}."):
            wrong = [t for t in targets for other in FORBIDDEN[package] if t == other or t.startswith(f"{other}.")]
            assert not wrong, f"{name} imports {', '.join(wrong)}"


def test_a_circle_is_found_behind_type_checking_and_in_functions(tmp_path: Path) -> None:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.b import B\n")
    (folder / "b.py").write_text("def f():\n    import pkg.c\n")
    (folder / "c.py").write_text("from pkg import a\n")
    assert cycle(imports(modules(folder))) == ["pkg.a", "pkg.b", "pkg.c", "pkg.a"]
