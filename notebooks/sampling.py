# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""What temperature, top-k, top-p and min-p leave of the model's real next-token distribution."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="From logits to candidates")

with app.setup:
    import marimo as mo

    from minillm.core import sampling
    from minillm.core.sampling import SamplingParams
    from minillm.llm import LLM
    from visualizers import notebook
    from visualizers.figures.sampling import VISUALIZER


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER)
    mo.vstack(
        [
            notebook.style(),
            ui["prompt"],
            mo.hstack([ui[i.name] for i in VISUALIZER.inputs if i.name != "prompt"], wrap=True, justify="start"),
        ]
    )
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # Five answers of the engine with these settings, each with a seed of its own.
    llm = LLM("tiny")
    settings = {name: inputs[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    answers = [
        llm.generate(inputs["prompt"], SamplingParams(**settings, max_tokens=16, seed=seed))[0].text
        for seed in range(5)
    ]
    mo.vstack([notebook.quoted(answer) for answer in answers])
    return


@app.cell
def _():
    notebook.code(sampling.distribution, sampling.sample)
    return


if __name__ == "__main__":
    app.run()
