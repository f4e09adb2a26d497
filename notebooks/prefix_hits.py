# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Six requests that share beginnings, served here and now with the prefix cache and without."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="What a prefix cache finds")

with app.setup:
    import marimo as mo

    from minillm.core.kv_manager import KVManager
    from visualizers import notebook
    from visualizers.figures.prefix_hits import VISUALIZER
    from visualizers.runs.prefix_run import run, serve


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    with mo.status.spinner("Serving the six requests, with the cache and without", remove_on_exit=True):
        data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return data, inputs


@app.cell
def _(data, inputs):
    data  # after the measurement
    # The token ids themselves: where two requests part, the hit ends.
    served = run(int(inputs["system"]), int(inputs["block_size"]), inputs["salt"] == "tenant", True)
    mo.ui.table(
        [
            {
                "request": s.sent.name,
                "tenant": s.sent.tenant,
                "tokens": len(s.sent.tokens),
                "found": s.hit_tokens,
                "first ids": " ".join(map(str, s.sent.tokens[:8])),
                "ids after the hit": " ".join(map(str, s.sent.tokens[s.hit_tokens : s.hit_tokens + 8])),
            }
            for s in served
        ],
        selection=None,
    )
    return


@app.cell
def _():
    notebook.code(KVManager.lookup, KVManager.admit, serve)
    return


if __name__ == "__main__":
    app.run()
