# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Static, dynamic and continuous batching on one and the same list of requests."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Three schedulers, one list of requests")

with app.setup:
    import marimo as mo

    from minillm.core.scheduler import Scheduler
    from visualizers import notebook
    from visualizers.figures.batching import VISUALIZER
    from visualizers.runs.batching_run import serve


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
    # Each request of one policy, as the engine served it. Choose another policy and run the cell.
    policy = "continuous"
    served = serve(policy, inputs["rate"], inputs["spread"], int(inputs["batch"]), "llama-3-8b", inputs["accelerator"])
    mo.ui.table(
        [
            {
                "request": number,
                "prompt tokens": s.job.prompt,
                "output tokens": s.job.output,
                "waits (ms)": round(1e3 * (s.start_s - s.job.arrival_s), 1),
                "TTFT (ms)": round(1e3 * s.ttft_s, 1),
                "TPOT (ms)": round(1e3 * s.tpot_s, 2),
            }
            for number, s in enumerate(served, start=1)
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
