# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""One list of requests from a pool too small for all of them: who is preempted, and what coming back costs."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Requests in a pool too small for them")

with app.setup:
    import marimo as mo

    from minillm.core.scheduler import Scheduler
    from visualizers import notebook
    from visualizers.figures.preemption import VISUALIZER
    from visualizers.runs.preemption_run import OUT, serve, workload


@app.cell
def _():
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Serving the requests from every pool", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # Who is preempted how often: the order ranks by arrival, so the first one never is.
    served = serve(int(inputs["pool"]), int(inputs["limit"]), inputs["mode"])
    mo.ui.table(
        [
            {
                "request": i + 1,
                "arrives (s)": job.arrival_s,
                "prompt": job.prompt,
                "answer": job.output,
                "preempted": sum(s.request == i and s.kind == OUT for s in served.spans),
                "ends (s)": round(max(s.end_s for s in served.spans if s.request == i), 3),
            }
            for i, job in enumerate(workload())
        ],
        selection=None,
        page_size=12,
    )
    return


@app.cell
def _():
    notebook.code(Scheduler._make_room, serve)
    return


if __name__ == "__main__":
    app.run()
