"""What the environment may say about building and serving: the only place of the site that reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def _variable(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None


@dataclass(frozen=True)
class Indexes:
    """Where the browser's Python is fetched from at build; ``None`` is the public CDN and the public index."""

    pyodide: str | None = field(default_factory=lambda: _variable("HANDBOOK_PYODIDE_INDEX_URL"))
    pypi: str | None = field(default_factory=lambda: _variable("HANDBOOK_PYPI_INDEX_URL"))

    def probes(self, pyodide_version: str) -> tuple[str, str]:
        """One small file of each, by which a build sees within seconds whether they answer."""
        runtime = self.pyodide or f"https://cdn.jsdelivr.net/pyodide/v{pyodide_version}/full/"
        packages = self.pypi or "https://pypi.org/simple/"
        return runtime.rstrip("/") + "/pyodide.mjs", packages.rstrip("/") + "/itsdangerous/"
