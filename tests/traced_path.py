"""What one plain greedy request passes through: the files and lines of the engine that run for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
from minillm.hub import BUNDLED
from minillm.models.load import load_model

PACKAGE = Path(__file__).parents[1] / "minillm"


class TracedPath(NamedTuple):
    """Files by their path below ``minillm``."""

    lines: dict[str, int]  # of the whole file
    executed: dict[str, int]  # of these, that ran
    switches: int  # calls of a decode step into another file than the call before it


def traced(run: Callable[[], object]) -> tuple[dict[str, set[int]], int]:
    """Lines that ran, by file, and how often a call led to another file than the call before."""
    ran: dict[str, set[int]] = {}
    switches, last = 0, ""
    prefix = f"{PACKAGE}/"

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal switches, last
        name = frame.f_code.co_filename
        if not name.startswith(prefix):
            return None
        ran.setdefault(name[len(prefix) :], set()).add(frame.f_lineno)
        if event == "call" and name != last:
            switches, last = switches + 1, name
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return ran, switches


def plain_request() -> TracedPath:
    """Admitted, read in two chunks, twenty decodes, finished; on NumPy, with everything by default."""
    engine = Engine(create_backend(load_model(BUNDLED / "tiny"), "numpy"), EngineConfig(chunk_size=16, num_blocks=9))
    prompt = [(7 * i) % 1000 + 20 for i in range(32)]

    def serve() -> None:
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=21, ignore_eos=True))
        assert [event.kind for event in engine.run()] == ["token"] * 21 + ["finish"]

    ran, _ = traced(serve)
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=21, ignore_eos=True))
    for _ in range(3):
        engine.step()
    _, switches = traced(engine.step)
    lines = {name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in ran}
    return TracedPath(lines, {name: len(found) for name, found in ran.items()}, switches)


if __name__ == "__main__":
    path = plain_request()
    for name in sorted(path.lines):
        print(f"{name:40} {path.lines[name]:5} lines, {path.executed[name]:4} run")
    core = [name for name in path.lines if name.count("/") == 1 and name.startswith("core/")]
    print(
        f"{len(path.lines)} files, {sum(path.lines.values())} lines, {sum(path.executed.values())} run; core: "
        f"{len(core)} files, {sum(path.lines[n] for n in core)} lines; {path.switches} switches a step"
    )
