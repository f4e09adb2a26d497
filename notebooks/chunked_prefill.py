# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""The gaps between tokens while a long prompt arrives, measured here and now: the prompt whole, and in chunks."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="A long prompt, whole and in chunks")

with app.setup:
    import marimo as mo

    from minillm.core.scheduler import Scheduler
    from visualizers import notebook
    from visualizers.figures.chunked_prefill import VISUALIZER
    from visualizers.runs.chunked_run import run, serve


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Running the engine, with the prompt whole and in chunks", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return data, inputs


@app.cell
def _(data, inputs):
    data  # after the measurement
    # Each step of the run in chunks: what it computed, and how long everyone who decodes waited for it.
    served = run(int(inputs["budget"]), int(inputs["prompt"]), int(inputs["decoders"]))
    mo.ui.table(
        [
            {"step": number, "tokens of the prompt": step.prompt_tokens, "gap (ms)": round(1e3 * step.gap_s, 2)}
            for number, step in enumerate(served.steps, start=1)
        ],
        selection=None,
        page_size=12,
    )
    return


@app.cell
def _():
    notebook.code(Scheduler.schedule, serve)
    return


if __name__ == "__main__":
    app.run()
