# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""How large the KV cache of a model is, and what another kind of attention would change."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="KV cache size")

with app.setup:
    import marimo as mo

    from minillm import catalog
    from minillm.costs import kv_bytes_per_token
    from visualizers import notebook
    from visualizers.figures.kv_cache_size import VISUALIZER
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
    # By hand, for a model of your own: change the four numbers and run the cell.
    layers, kv_heads, head_dim, bytes_per_value = 32, 8, 128, 2
    per_token = kv_bytes_per_token(layers, kv_heads, head_dim, bytes_per_value)
    total = per_token * inputs["context"] * inputs["batch"]
    mo.md(
        f"{layers} layers of {kv_heads} KV heads with {head_dim} numbers for a key and as many for a value, "
        f"{bytes_per_value} bytes each: **{format_value(per_token, 'bytes')}** a token, "
        f"**{format_value(total, 'bytes')}** for {inputs['batch']:,} × {inputs['context']:,} tokens."
    )
    return


@app.cell
def _(inputs):
    # The same for the model that was chosen, from its published config.
    model = catalog.model(inputs["model"])
    model.kv_bytes_per_token("bf16"), model.geometry
    return


@app.cell
def _():
    notebook.code(VISUALIZER.compute, kv_bytes_per_token)
    return


if __name__ == "__main__":
    app.run()
