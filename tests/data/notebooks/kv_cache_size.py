# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""For the tests of the live level: opens where the address says, moves by a slider of its own, draws a chart."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="A slider, a sentence, a chart")

with app.setup:
    import json

    import marimo as mo

    from visualizers import notebook


@app.cell
def _():
    steps = [1024, 2048, 4096, 8192]
    asked = str(mo.query_params().to_dict().get("context", ""))
    context = mo.ui.slider(steps=steps, value=int(asked) if asked.isdecimal() else 8192, label="Tokens")
    mo.vstack([notebook.style(), context])
    return (context,)


@app.cell
def _(context):
    mo.md(f"**{context.value:,}** tokens are in the cache of the model")
    return


@app.cell
def _():
    class Chart:
        def __init__(self, spec):
            self.spec = spec

        def _mime_(self):
            return "application/vnd.vegalite.v6+json", json.dumps(self.spec)

    return (Chart,)


@app.cell
def _(Chart, context):
    Chart(
        {
            "data": {"values": [{"x": "now", "y": context.value}]},
            "mark": {"type": "bar", "color": "var(--hb-kv)"},
            "encoding": {"x": {"field": "x", "type": "nominal"}, "y": {"field": "y", "type": "quantitative"}},
            "width": "container",
            "height": 400,
            "usermeta": {"embedOptions": {"renderer": "svg", "actions": False}},
        }
    )
    return


@app.cell
def _(context):
    mo.md(f"{context.value:,}")
    return


if __name__ == "__main__":
    app.run()
