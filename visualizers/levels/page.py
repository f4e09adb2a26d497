"""The figure as a page holds it: printed, with its controls and actions ready for the script to wake.

Everything stands in the page from the start, at its size, so that nothing moves when the instant level
arrives; without a script the controls are hidden and the rest is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from visualizers.contract import Number
from visualizers.levels import charts, controls, describe, printed
from visualizers.levels.instant import payload_path
from visualizers.levels.snapshot import FigureError, Snapshot

_DOWNLOADS = (("svg", "SVG"), ("png", "PNG"), ("csv", "CSV"), ("json", "JSON"))


def figure_html(
    snapshot: Snapshot,
    state: Mapping[str, object],
    *,
    base_url: str,
    repo_url: str = "",
    notebook: bool = True,
) -> str:
    """The custom element of a figure at ``state``, for a page from which the site's root is ``base_url``.

    ``repo_url`` is the code's address on its host. Without a ``notebook`` there is no "Run live".
    The instant level must have the state: an input that moves with a kernel alone stays at its default.
    """
    visualizer = snapshot.visualizer
    chosen = snapshot.at(state)
    for i in visualizer.inputs:
        if i.instant == "live" and chosen.inputs[i.name] != i.default:
            raise FigureError(
                f"{visualizer.name}: a page cannot set {i.name!r}, which moves with a kernel only: "
                f"leave it at {i.default!r} or change the default"
            )
    figure_id = describe.figure_id(visualizer, chosen.inputs)
    wide = printed.svg(snapshot, chosen, charts.WIDE, figure_id)
    narrow = printed.svg(snapshot, chosen, charts.NARROW, figure_id)
    inner = "".join(
        (
            _head(snapshot, figure_id),
            _controls(snapshot, chosen.inputs, figure_id),
            '<p class="hbf-note" data-note hidden></p>',
            f'<div class="hbf-stage" data-stage style="--hbf-wide:{printed.size(wide)[1]}px;'
            f'--hbf-narrow:{printed.size(narrow)[1]}px">'
            f'<div class="hbf-print hbf-print-wide">{wide}</div>'
            f'<div class="hbf-print hbf-print-narrow">{narrow}</div></div>',
            f'<p class="hbf-sentence" data-sentence>{printed.sentence_html(chosen)}</p>',
            _foot(snapshot, chosen.inputs, notebook),
            '<details class="hbf-details"><summary>Table of values</summary>'
            '<div class="hbf-scroll" data-table tabindex="0" role="region" '
            f'aria-label="{escape(visualizer.title)}: table of values">'
            f"{printed.table_html(chosen.table, visualizer.summary)}</div></details>",
            _how(snapshot, chosen.inputs, repo_url),
            '<div class="hbf-live" data-live-slot></div>',
            '<div class="hbf-hidden" role="status" aria-live="polite" data-announce></div>',
        )
    )
    settings = escape(json.dumps(dict(chosen.inputs), ensure_ascii=False))
    return (
        f'<hb-figure id="{figure_id}" name="{visualizer.name}" data-payload="{escape(base_url)}'
        f'{payload_path(snapshot)}" data-state="{settings}">'
        f'<figure class="hbf" aria-labelledby="{figure_id}-caption">{inner}</figure></hb-figure>'
    )


def _head(snapshot: Snapshot, figure_id: str) -> str:
    visualizer = snapshot.visualizer
    meaning = describe.BADGES[visualizer.badge]
    about = f"{meaning}. {snapshot.provenance()}".strip()
    return (
        f'<figcaption class="hbf-caption" id="{figure_id}-caption">'
        f'<span class="hbf-title">{escape(visualizer.title)}</span>'
        f'<span class="hbf-badge hbf-badge-{visualizer.badge}" title="{escape(about)}">{visualizer.badge}</span>'
        f'<span class="hbf-summary">{escape(visualizer.summary)}</span></figcaption>'
    )


def _controls(snapshot: Snapshot, inputs: Mapping[str, object], figure_id: str) -> str:
    ends = {i.name: snapshot.end(i, inputs) for i in snapshot.visualizer.inputs if isinstance(i, Number)}
    first, more = (
        "".join(
            controls.control_html(i, inputs[i.name], figure_id, ends.get(i.name))
            for i in snapshot.visualizer.inputs
            if i.more == is_more
        )
        for is_more in (False, True)
    )
    if not first and not more:
        return ""
    moved = any(i.more and inputs[i.name] != i.default for i in snapshot.visualizer.inputs)
    behind = (
        f'<details class="hbf-more" data-more{" open" if moved else ""}><summary>More</summary>'
        f'<div class="hbf-controls">{more}</div></details>'
    )
    return (
        '<form class="hbf-form" data-controls autocomplete="off"><fieldset class="hbf-levers" disabled>'
        f'<legend class="hbf-hidden">Inputs of {escape(snapshot.visualizer.title)}</legend>'
        f'<div class="hbf-controls">{first}</div>{behind if more else ""}</fieldset></form>'
    )


def _foot(snapshot: Snapshot, inputs: Mapping[str, object], notebook: bool) -> str:
    run = '<button type="button" class="hbf-run" data-run disabled>Run live</button>' if notebook else ""
    downloads = "".join(
        f'<button type="button" class="hbf-action" data-download="{kind}" disabled>{label}</button>'
        for kind, label in _DOWNLOADS
    )
    return (
        f'<div class="hbf-foot">{run}'
        '<button type="button" class="hbf-action" data-reset disabled>Reset</button>'
        '<button type="button" class="hbf-action" data-link disabled>Copy link</button>'
        f'<span class="hbf-downloads" role="group" aria-label="Download">{downloads}</span></div>'
    )


def _how(snapshot: Snapshot, inputs: Mapping[str, object], repo_url: str) -> str:
    visualizer = snapshot.visualizer
    provenance = snapshot.provenance()
    where = f"<p>{escape(provenance)}</p>" if provenance else ""
    file, first, last = describe.source_line(visualizer)
    lines = f"{file}, lines {first} to {last}"
    code = f'<a href="{escape(describe.source_url(visualizer, repo_url))}">{lines}</a>' if repo_url else lines
    badge = describe.BADGES[visualizer.badge].capitalize()
    takes = "".join(
        f"<dt>{escape(i.label)}</dt><dd>{escape(i.help)} {escape(controls.takes(i))}.</dd>" for i in visualizer.inputs
    )
    return (
        '<details class="hbf-details"><summary>How this was computed</summary>'
        f'<div class="hbf-how"><p>{badge}.</p>{where}<dl>{takes}</dl>'
        f'<pre class="hbf-formula">{escape(visualizer.formula)}</pre>'
        f"<p>Code: {code}</p>"
        f'<pre class="hbf-command" data-command>{escape(describe.command(visualizer, inputs))}</pre></div></details>'
    )
