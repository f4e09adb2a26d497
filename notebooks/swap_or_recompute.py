# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""What a preempted request costs: its K/V out and back over a link, or its tokens computed again."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Swap or recompute")

with app.setup:
    import marimo as mo

    from minillm import catalog
    from minillm.costs import recompute_crossover_tokens, recompute_time_s, swap_time_s
    from visualizers import notebook
    from visualizers.figures.swap_or_recompute import VISUALIZER


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
    # The same model and link on every accelerator: where arithmetic is slow, swapping wins sooner.
    def row(machine):
        values = VISUALIZER.compute({**inputs, "accelerator": machine.slug}).values
        crossover = values["crossover_tokens"]
        return {
            "accelerator": machine.title,
            "swapped (ms)": round(1e3 * values["swap_s"], 2),
            "computed again (ms)": round(1e3 * values["recompute_s"], 2),
            "quicker": values["faster"],
            "crossover (tokens)": "none" if crossover is None else round(crossover),
        }

    mo.ui.table([row(machine) for machine in catalog.accelerators().values()], selection=None)
    return


@app.cell
def _():
    notebook.code(swap_time_s, recompute_time_s, recompute_crossover_tokens)
    return


if __name__ == "__main__":
    app.run()
