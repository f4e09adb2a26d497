# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Token trees on the engine, here and now: what is hedged in each step, and the mask that verifies it at once."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="A tree of guesses")

with app.setup:
    import marimo as mo

    from minillm.speculate.draft_tree import DraftTree
    from minillm.speculate.tree import visible
    from visualizers import notebook
    from visualizers.figures.token_trees import VISUALIZER
    from visualizers.runs import bundled
    from visualizers.runs.token_tree_run import run


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    await notebook.fetch_model("tiny-draft")
    await notebook.fetch_model("tiny-medusa")
    await notebook.fetch_model("tiny-eagle")
    await notebook.fetch_model("tiny-mtp")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Running the engine with trees and with chains", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return data, inputs


@app.cell
def _(data, inputs):
    data  # after the runs
    # All drafts of the first answer that are shown, one row a step.
    seen = run(inputs["setting"], "tree", int(inputs["size"])).seen
    mo.ui.table(
        [
            {
                "step": number,
                "after": bundled.decode([one.last]),
                "kept": bundled.decode([one.token_ids[node] for node in one.kept]),
                "kept tokens": len(one.kept),
                "drafted": len(one.token_ids),
            }
            for number, one in enumerate(seen, start=1)
        ],
        selection=None,
    )
    return


@app.cell
def _():
    notebook.code(visible, DraftTree)
    return


if __name__ == "__main__":
    app.run()
