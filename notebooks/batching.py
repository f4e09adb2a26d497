# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Static and continuous batching: two engines get the same requests, one lets a request join at any step."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Batching: two engines, the same requests")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every, poisson
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.policies.batching.ContinuousPolicy.admissible: how many of the waiting requests may join the batch of engine A
    # now. Return 0 while `view.num_running` is above 0, and nobody joins a batch that runs, as in B.
    def admissible(self, view):
        return view.num_waiting

    mine = {"scheduler._policy.admissible": admissible}
    return (mine,)


@app.cell
async def _(mine):
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
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    steps = exercise.ask(
        "Three requests come at once, with answers of 4, 8 and 12 tokens. The batch holds two of them. "
        "How many steps does continuous batching take until the last token?"
    )
    steps
    return (steps,)


@app.cell
def _(steps):
    def solve():
        asks = tuple(a for i in range(3) for a in every(0.0, (8,), (4 * (i + 1),), 1))
        return exercise.record(asks, Setup(batch="2")).num_steps

    exercise.check(
        steps,
        "steps",
        solve,
        "The third request joins when the first has ended, after step 4, and takes 12 steps. Static batching would "
        "take 8 for the first two and 12 more for the third.",
    )
    return


if __name__ == "__main__":
    app.run()
