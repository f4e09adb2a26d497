# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Eight requests in one batch and one after the other: a step reads the weights once, whoever shares it."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The decode ceiling: a batch of 8 and of 1")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.scheduler.Scheduler._has_place: whether the batch has room for one more. Compare with 1 at the end, and
    # A becomes B, which reads all weights for each single token.
    def _has_place(self, request, count, given_back):
        taken = len(self.running) - given_back + sum(group.num_joining for group in self._groups)
        needed = count if request.group is None else count + request.group.num_bringing
        return taken + needed <= min(self._config.max_running_requests, self._config.max_batch_tokens)

    mine = {"scheduler._has_place": _has_place}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = ("The state of our union is", "We will build", "My fellow citizens, I have", "In the last year")
    recipe = Recipe(
        title="A batch of 8 and of 1",
        lever="batch",
        a=Setup(batch="8"),
        b=Setup(batch="1"),
        requests=every(0.0, prompts, (48,), 8),
        prompts=prompts,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    steps = exercise.ask(
        "Eight requests come at once, each with a prompt of 8 tokens and an answer of 48. How many steps does an "
        "engine with a batch of 8 take for all of them?"
    )
    steps
    return (steps,)


@app.cell
def _(steps):
    def solve():
        asks = every(0.0, (8,), (48,), 8)
        return exercise.record(asks, Setup(batch="8")).num_steps

    exercise.check(
        steps,
        "steps",
        solve,
        "The step that reads the prompts gives each its first token, and 47 more give the others. One by one it would "
        "be 8 times as many, and each of these would read all weights.",
    )
    return


if __name__ == "__main__":
    app.run()
