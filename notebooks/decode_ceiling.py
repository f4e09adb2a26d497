# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""The most tokens/s that a model can decode on an accelerator: bytes over bandwidth."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The decode ceiling")

with app.setup:
    import marimo as mo

    from minillm import catalog
    from minillm.costs import decode_ceiling_tokens_per_s
    from visualizers import notebook
    from visualizers.figures.decode_ceiling import VISUALIZER
    from visualizers.formats import format_value


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
    # By hand: what a step must read, over what the memory moves in a second.
    model, accelerator = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    # Of experts a step reads those that its tokens choose; a layer with a window reads no further than that.
    weights = model.geometry.weight_bytes(inputs["dtype"], tokens=inputs["batch"])
    cache = model.kv_bytes(inputs["context"], "bf16", inputs["batch"])
    read = weights + cache
    ceiling = decode_ceiling_tokens_per_s(read, accelerator.memory_bandwidth, inputs["batch"])
    mo.md(
        f"{format_value(weights, 'bytes')} of weights and {format_value(cache, 'bytes')} of cache for "
        f"{inputs['batch']:,} × {inputs['context']:,} tokens are **{format_value(read, 'bytes')}** a step; at "
        f"{format_value(accelerator.memory_bandwidth, 'bytes10')}/s at most "
        f"**{format_value(ceiling, 'sig3')} tokens/s** for the batch, where memory is the limit."
    )
    return


@app.cell
def _():
    notebook.code(VISUALIZER.compute, decode_ceiling_tokens_per_s)
    return


if __name__ == "__main__":
    app.run()
