"""Where things lie and whom to ask for them: the only place that reads environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


def _cache_dir() -> Path:
    if own := os.environ.get("MINILLM_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "minillm"


@dataclass(frozen=True)
class Locations:
    """Folders and addresses. Each field may be given, else the environment or the default decides.

    An environment variable that is empty counts as not set.
    """

    cache: Path = field(default_factory=_cache_dir)  # MINILLM_CACHE: downloaded models, one folder each
    package_index: str = field(  # MINILLM_INDEX_URL: a PEP 503 index
        default_factory=lambda: os.environ.get("MINILLM_INDEX_URL") or "https://pypi.org/simple/"
    )
    hub: str = field(  # HF_ENDPOINT, as the hub's own clients name it
        default_factory=lambda: (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    )
    hub_token: str | None = field(default_factory=lambda: os.environ.get("HF_TOKEN") or None, repr=False)
