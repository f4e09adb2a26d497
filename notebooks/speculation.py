# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Drafts on the engine, here and now: what is drafted, what is accepted, and that the text stays the same."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="What a draft brings")

with app.setup:
    import marimo as mo

    from minillm.speculate.accept import accepted_path
    from minillm.speculate.ngram import NgramDrafter
    from visualizers import notebook
    from visualizers.figures.speculation import TITLES, VISUALIZER
    from visualizers.runs.speculation_run import DRAFTERS, run


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    await notebook.fetch_model("tiny-draft")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Running the engine with every drafter", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return data, inputs


@app.cell
def _(data, inputs):
    data  # after the runs
    # The first output of the batch by each drafter, against the run without: equal ids, unless drafts were weighed.
    plain = run(inputs["setting"], None).outputs[0]
    mo.ui.table(
        [
            {
                "drafter": TITLES[drafter],
                "same ids as without": run(inputs["setting"], drafter, int(inputs["length"])).outputs[0] == plain,
                "steps for all": run(inputs["setting"], drafter, int(inputs["length"])).steps,
                "without": run(inputs["setting"], None).steps,
            }
            for drafter in DRAFTERS
        ],
        selection=None,
    )
    return


@app.cell
def _():
    notebook.code(NgramDrafter, accepted_path)
    return


if __name__ == "__main__":
    app.run()
