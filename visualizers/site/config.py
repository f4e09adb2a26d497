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

    def addresses(self, pyodide_version: str) -> tuple[str, str]:
        """The runtime's and the packages' address, each with a slash at its end."""
        runtime = self.pyodide or f"https://cdn.jsdelivr.net/pyodide/v{pyodide_version}/full/"
        packages = self.pypi or "https://pypi.org/simple/"
        return runtime.rstrip("/") + "/", packages.rstrip("/") + "/"

    def probes(self, pyodide_version: str) -> tuple[str, str]:
        """One small file of each, by which a build sees within seconds whether they answer."""
        runtime, packages = self.addresses(pyodide_version)
        return f"{runtime}pyodide.mjs", f"{packages}itsdangerous/"
