# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""What speculation gains as the batch grows: by formula on a catalogued accelerator, and measured on our engine."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Where the gain ends")

with app.setup:
    import marimo as mo

    from minillm.catalog import Model
    from minillm.costs import speculated_tokens, speculative_speedup
    from visualizers import notebook
    from visualizers.figures.speculation_gain import VISUALIZER


@app.cell
def _():
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # The same with other lengths of drafts: which is the best depends on the batch.
    def gains(length):
        found = VISUALIZER.compute({**inputs, "length": length}).rows["gains"]
        return {row["batch"]: round(row["speedup"], 2) for row in found if row["batch"] in (1, 16, 64, 256, 1024)}

    mo.ui.table(
        [
            {"tokens of a draft": length, **{f"batch {batch}": gain for batch, gain in gains(length).items()}}
            for length in (1, 2, 4, 8)
        ],
        selection=None,
    )
    return


@app.cell
def _():
    notebook.code(speculated_tokens, speculative_speedup, Model.verify_cost)
    return


if __name__ == "__main__":
    app.run()
