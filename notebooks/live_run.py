# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""An engine that goes on: requests of your own, arrivals at a rate, memory and latency as they come."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="An engine at work")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import Ask, every
    from visualizers.desk.recipe import Recipe


@app.cell
def _():
    # minillm.core.policies.order.FirstComeOrder.rank: who of the waiting is next, the smallest first. Return
    # `(-request.arrival_s, request.index)`, and whoever came last is served first.
    def rank(self, request):
        return (request.arrival_s, request.index)

    mine = {"order.rank": rank}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = (
        "My fellow citizens, the state of the Union",
        "The report of the Secretary shows that",
        "We must",
        "In the last year the public debt",
    )
    lengths = zip((0.0, 0.4, 0.9, 1.4), prompts, (240, 160, 200, 120), strict=True)
    recipe = Recipe(
        title="An engine at work",
        lever="batch",
        requests=tuple(Ask(at_s, prompt, tokens) for at_s, prompt, tokens in lengths),
        prompts=prompts,
        max_tokens=96,
        rate=0.25,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    steps = exercise.ask(
        "A prompt of 40 tokens gets an answer of 10. How many steps does the engine take for the request?"
    )
    steps
    return (steps,)


@app.cell
def _(steps):
    def solve():
        return exercise.record(every(0.0, (40,), (10,), 1)).num_steps

    exercise.check(
        steps,
        "steps",
        solve,
        "The first step reads the whole prompt, and its last row of logits gives the first token. Each of the other "
        "nine tokens takes a step of its own.",
    )
    return


if __name__ == "__main__":
    app.run()
