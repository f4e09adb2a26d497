# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Conversations under shared system prompts, from a pool too small for all that they could find again."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="A prefix cache under pressure")

with app.setup:
    import marimo as mo

    from minillm.core.kv.eviction import PriorityEvictor
    from visualizers import notebook
    from visualizers.figures.prefix_eviction import VISUALIZER
    from visualizers.runs.prefix_trace import POLICIES, serve


@app.cell
def _():
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Serving the conversations from every pool", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # The same trace with the other index, a radix tree: what is found must not change.
    mo.ui.table(
        [
            {
                "eviction": policy,
                **{
                    f"found by {index} (tokens)": serve(inputs["traffic"], inputs["pool"], policy, index).found_tokens
                    for index in ("hash", "radix")
                },
            }
            for policy in POLICIES
        ],
        selection=None,
    )
    return


@app.cell
def _():
    notebook.code(PriorityEvictor, serve)
    return


if __name__ == "__main__":
    app.run()
