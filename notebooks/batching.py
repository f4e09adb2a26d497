# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Static and continuous batching side by side: two engines, the same requests, live."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Batching, live")

with app.setup:
    import marimo as mo

    from visualizers import notebook
    from visualizers.desk.app import show
    from visualizers.desk.asks import poisson
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    prompts = ("The state of our union is", "We will build", "My fellow citizens, I have", "In the last year")
    recipe = Recipe(
        title="Static and continuous batching",
        lever="policy",
        a=Setup(policy="continuous"),
        b=Setup(policy="static"),
        requests=poisson(5, prompts, (16, 96, 24, 48), 24),
        prompts=prompts,
        rounds=3,
    )
    mo.vstack([notebook.style(), show(recipe)])
    return


if __name__ == "__main__":
    app.run()
