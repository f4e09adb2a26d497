"""``python -m visualizers``: the figures' numbers on the command line, for people and for programs.

    python -m visualizers list [--json]
    python -m visualizers NAME [--INPUT VALUE ...] [--json]

With ``--json``, standard output is one JSON value and nothing else. Bad input: a message on standard
error, exit code 2, nothing on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from minillm.process import explain, prepare

try:
    from visualizers import registry
    from visualizers.contract import InputError, Table, Visualizer
    from visualizers.formats import with_unit
    from visualizers.levels import controls, describe
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


def _run(arguments: list[str]) -> str:
    if not arguments or arguments[0] in ("-h", "--help"):
        return (__doc__ or "").replace("``", "")
    name, rest = arguments[0], arguments[1:]
    if name == "list":
        as_json, given = _options(rest)
        if given:
            raise UsageError(f"list takes no --{next(iter(given))}: only --json")
        return _list(as_json)
    if name.startswith("-"):
        raise UsageError(f"the first word is a figure's name or list, not {name}")
    visualizer = registry.get(name)
    if rest and rest[0] in ("-h", "--help"):
        return _help(visualizer)
    as_json, given = _options(rest)
    snapshot = Snapshot(visualizer, DataCache(visualizer, default_folder()))
    state = snapshot.at(given)
    if as_json:
        return json.dumps(describe.record(snapshot, state), indent=2, ensure_ascii=False)
    return _readable(snapshot, state)


def _options(words: list[str]) -> tuple[bool, dict[str, object]]:
    """Whether ``--json`` stands among the words, and the inputs: ``--block-size 16`` or ``--block_size=16``."""
    as_json, given, waiting = False, {}, list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--json":
            as_json = True
            continue
        if not word.startswith("--") or len(word) == 2:
            raise UsageError(f"{word!r} is no option: inputs are written --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not waiting:
                raise UsageError(f"--{name} has no value: write --{name} VALUE")
            value = waiting.pop(0)
        key = name.replace("-", "_")
        if key in given:
            raise UsageError(f"--{name} is given twice")
        given[key] = value
    return as_json, dict(given)


def _list(as_json: bool) -> str:
    every = registry.all()
    if not as_json:
        width = max((len(v.name) for v in every), default=0)
        return "\n".join(f"{v.name:{width}}  {v.title} ({', '.join(v.chapters)})" for v in every)
    return json.dumps([_entry(v) for v in every], indent=2, ensure_ascii=False)


def _entry(visualizer: Visualizer) -> dict[str, Any]:
    return {
        "name": visualizer.name,
        "title": visualizer.title,
        "summary": visualizer.summary,
        "badge": visualizer.badge,
        "chapters": list(visualizer.chapters),
        "inputs": [
            {
                "name": i.name,
                "label": i.label,
                "unit": i.unit,
                "default": i.default,
                "takes": i.range_text(),
                "help": i.help,
                "instant": i.instant,
            }
            for i in visualizer.inputs
        ],
        "values": dict(visualizer.units),
    }


def _help(visualizer: Visualizer) -> str:
    inputs = [
        f"  --{i.name}  {i.help} ({i.range_text()}; {controls.value_text(i, i.default)})" for i in visualizer.inputs
    ]
    return "\n".join([f"{visualizer.name}: {visualizer.summary}", *inputs])


def _readable(snapshot: Snapshot, state: State) -> str:
    visualizer = snapshot.visualizer
    inputs = [f"  {i.label}: {controls.value_text(i, state.inputs[i.name])}" for i in visualizer.inputs]
    values = [f"  {name} = {with_unit(value, visualizer.units[name])}" for name, value in state.data.values.items()]
    badge = f"{visualizer.badge}: {describe.BADGES[visualizer.badge]}"
    parts = [visualizer.title, *inputs, "", state.text(), "", *values, "", *_table(state.table), "", badge]
    return "\n".join([*parts, *filter(None, [snapshot.provenance()])])


def _table(table: Table) -> list[str]:
    rows = [table.headings(), *table.texts()]
    widths = [max(len(row[n]) for row in rows) for n in range(len(table.columns))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
