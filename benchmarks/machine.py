"""What a record says of the machine it was measured on, and how it is written."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def last_level_cache_mib() -> float | None:
    """Of the first core, as Linux tells it; None elsewhere."""
    sizes = [p.read_text().strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(s[:-1]) / 1024 for s in sizes if s.endswith("K")), default=None)


def report(found: dict[str, Any], record: Path | None) -> None:
    """Print ``found`` and the date as one line of JSON; where a record is wanted, write both and this command."""
    dated = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), **found}
    if record is not None:
        command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        record.write_text(json.dumps({"command": command, **dated}, indent=2) + "\n")
    print(json.dumps(dated))
