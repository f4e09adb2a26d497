"""The run as a file: the recorded steps as JSON or CSV, the engine's own trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from minillm.core.observe.chrome_trace import chrome_trace
from visualizers.desk.record import COLUMNS
from visualizers.desk.setup import LEVERS, DeskError

if TYPE_CHECKING:
    from visualizers.desk.session import Session

KINDS = ("json", "csv", "perfetto")


def about(session: Session) -> dict[str, Any]:
    """What a file or a picture says of its run."""
    return {
        "title": session.recipe.title,
        "machine": session.machine.device,
        "clock": "modelled" if session.machine.modelled else "measured",
        "model": session.recipe.model,
        "settings": {side.name: {n: getattr(side.setup, n) for n in LEVERS} for side in session.sides},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "recipe": session.recipe.record() | {"requests": [ask.record() for ask in session.asks]},
    }


def file(session: Session, kind: str) -> dict[str, str]:
    """Name, media type and text of a download. Raises :class:`DeskError` for a kind there isn't."""
    if kind not in KINDS:
        raise DeskError(f"there is no download {kind!r}: choose from {', '.join(KINDS)}")
    stem = session.recipe.title.lower().replace(" ", "-")
    if kind == "csv":
        return {"name": f"{stem}.csv", "type": "text/csv", "text": _csv(session)}
    if kind == "json":
        return {"name": f"{stem}.json", "type": "application/json", "text": json.dumps(_json(session))}
    events = {side.name: chrome_trace(side.record.trace)["traceEvents"] for side in session.sides}
    for number, entries in enumerate(events.values()):
        for entry in entries:
            entry["pid"] += 10 * number  # processes of their own in the viewer
    trace = {
        "traceEvents": [entry for entries in events.values() for entry in entries],
        "displayTimeUnit": "ms",
        "otherData": about(session),
    }
    return {"name": f"{stem}.perfetto.json", "type": "application/json", "text": json.dumps(trace)}


def _json(session: Session) -> dict[str, Any]:
    return about(session) | {
        "sides": {
            side.name: {
                "steps": [dict(zip(COLUMNS, row, strict=True)) for row in side.record.rows],
                "requests": [lane.told() for lane in side.record.lanes.values()],
                "gaps": [{"t": t, "ms": ms, "request": n} for t, ms, n in side.record.gaps],
            }
            for side in session.sides
        }
    }


def _csv(session: Session) -> str:
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(["side", *COLUMNS])
    for side in session.sides:
        write.writerows([side.name, *row] for row in side.record.rows)
    return out.getvalue()
