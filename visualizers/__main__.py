"""``python -m visualizers``: the figures' numbers on the command line, for people and for programs.

    python -m visualizers list [--json]
    python -m visualizers NAME [--INPUT VALUE ...] [--json] [--fresh]
    python -m visualizers NAME --help

With ``--json``, standard output is one JSON value and nothing else. What was computed before is kept, and
its output says when it was computed; ``--fresh`` computes it again, and times anew what is timed. Bad input:
a message on standard error, exit code 2, nothing on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minillm.process import explain, prepare

try:
    from visualizers import registry
    from visualizers.contract import InputError, Table, Visualizer
    from visualizers.formats import with_unit
    from visualizers.levels import controls, describe, schema
    from visualizers.levels.cache import DataCache, default_folder
    from visualizers.levels.snapshot import Snapshot, State
except ModuleNotFoundError as missing:
    sys.exit(
        f"visualizers: this Python has no {missing.name}: in a checkout, run make env once and then "
        ".venv/bin/python -m visualizers"
    )


class UsageError(ValueError):
    """A command line that says nothing that can be done; the message says what can."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code: 0, 1 (it failed), 2 (bad input), 130 (interrupted)."""
    try:
        prepare()
        print(_run(list(sys.argv[1:] if arguments is None else arguments)), flush=True)
    except (UsageError, InputError, registry.UnknownVisualizerError) as problem:
        return _tell(problem, 2)
    except KeyboardInterrupt:
        return _tell("stopped", 130)
    except BrokenPipeError:  # the reader had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _tell(explain(error), 1)
    return 0


def _tell(problem: object, code: int) -> int:
    print(f"visualizers: {problem}", file=sys.stderr)
    return code


@dataclass(frozen=True)
class _Words:
    """The words behind a name: what is asked for, and the inputs as they are written."""

    inputs: Mapping[str, object]
    json: bool = False
    fresh: bool = False
    help: bool = False


def _run(arguments: list[str]) -> str:
    if not arguments or arguments[0] in ("-h", "--help"):
        return (__doc__ or "").replace("``", "")
    name, words = arguments[0], _words(arguments[1:])
    if name == "list":
        if words.help:
            return (__doc__ or "").replace("``", "")
        if words.inputs or words.fresh:
            raise UsageError(f"list takes no --{next(iter(words.inputs), 'fresh')}: only --json")
        return _list(words.json)
    if name.startswith("-"):
        raise UsageError(f"the first word is a figure's name or list, not {name}")
    visualizer = registry.get(name)
    if words.help:
        return _help(visualizer)
    snapshot = Snapshot(visualizer, DataCache(visualizer, None if words.fresh else default_folder()))
    state = snapshot.at(words.inputs)
    if words.json:
        found = describe.record(snapshot, state) | {"recorded_at": snapshot.recorded_at(state)}
        return json.dumps(found, indent=2, ensure_ascii=False)
    return _readable(snapshot, state)


def _words(words: list[str]) -> _Words:
    """What the words ask for: ``--json``, ``--fresh``, ``--help``, inputs as ``--size 16`` or ``--size=16``."""
    flags: set[str] = set()
    given: dict[str, object] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in ("--json", "--fresh", "--help", "-h"):
            flags.add("help" if word == "-h" else word[2:])
            continue
        if not word.startswith("--") or len(word) == 2:
            raise UsageError(f"{word!r} is no option: inputs are written --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not waiting or waiting[0] in ("--json", "--fresh", "--help"):
                raise UsageError(f"--{name} has no value: write --{name} VALUE")
            value = waiting.pop(0)
        key = name.replace("-", "_")
        if key in ("json", "fresh", "help"):
            raise UsageError(f"--{name} takes no value: write it alone")
        if key in given:
            raise UsageError(f"--{name} is given twice")
        given[key] = value
    return _Words(given, **dict.fromkeys(flags, True))


def _list(as_json: bool) -> str:
    every = registry.all()
    if not as_json:
        return "\n".join(
            line for v in every for line in (f"{v.name}: {v.title} ({', '.join(v.chapters)})", *_inputs(v))
        )
    return json.dumps([schema.entry(v) for v in every], indent=2, ensure_ascii=False)


def _help(visualizer: Visualizer) -> str:
    flags = ["  --json  One JSON value instead of text.", "  --fresh  Computed again, whatever is kept from before."]
    return "\n".join([f"{visualizer.name}: {visualizer.summary}", *_inputs(visualizer), *flags])


def _inputs(visualizer: Visualizer) -> list[str]:
    return [
        f"  --{i.name}  {i.help} ({i.range_text()}; {controls.value_text(i, i.default)})" for i in visualizer.inputs
    ]


def _readable(snapshot: Snapshot, state: State) -> str:
    visualizer = snapshot.visualizer
    inputs = [f"  {i.label}: {controls.value_text(i, state.inputs[i.name])}" for i in visualizer.inputs]
    values = [f"  {name} = {with_unit(value, visualizer.units[name])}" for name, value in state.data.values.items()]
    badge = f"{visualizer.badge}: {describe.BADGES[visualizer.badge]}"
    parts = [visualizer.title, *inputs, "", state.text(), "", *values, "", *_table(state.table), "", badge]
    return "\n".join([*parts, *filter(None, [snapshot.provenance()]), f"Recorded at {snapshot.recorded_at(state)}."])


def _table(table: Table) -> list[str]:
    rows = [table.headings(), *table.texts()]
    widths = [max(len(row[n]) for row in rows) for n in range(len(table.columns))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
