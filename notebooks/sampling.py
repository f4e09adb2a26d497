# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""One prompt, eight times, at temperature 0 and at temperature 1: how many different answers come."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Sampling: temperature 0 and 1")

with app.setup:
    import math

    from minillm.core.sampling import SamplingParams, distribution
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.sampling.sample: the token at a number between 0 and 1 that belongs to this draw. Return
    # `entries[0][0]`, the likeliest token, and the numbers do not matter any more.
    def sample(logits, params, uniform, transform=None):
        entries = distribution(logits, params, transform)
        reached = 0.0
        for token_id, probability in entries:
            reached += probability
            if uniform < reached:
                return token_id
        return entries[-1][0]

    def draw(self, hidden, plan, result):
        rows = self.decoder.logits(hidden).tolist()
        drawn = zip(rows, plan.sampling, plan.uniforms, strict=True)
        result.token_ids = [sample(row, p, u, plan.transforms.get(i)) for i, (row, p, u) in enumerate(drawn)]

    mine = {"backend.draw": draw}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    recipe = Recipe(
        title="Temperature 1 and 0",
        lever="temperature",
        a=Setup(temperature="1"),
        b=Setup(temperature="0"),
        requests=every(0.0, ("We must",), (24,), 8),
        prompts=("We must",),
        max_tokens=24,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "A draws by the notebook's function in plain Python, one row after the other, so its steps take longer "
        "than those of B, which draws for all rows at once. Whatever is random about an answer comes from its "
        "temperature.",
    )
    return


@app.cell
def _():
    kept = exercise.ask(
        "Four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05. How many of them can be drawn with top-p 0.9 and "
        "min-p 0.4?"
    )
    kept
    return (kept,)


@app.cell
def _(kept):
    def solve():
        logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
        return len(distribution(logits, SamplingParams(top_p=0.9, min_p=0.4)))

    exercise.check(
        kept,
        "tokens",
        solve,
        "Top-p keeps three, since 0.5 and 0.3 do not reach 0.9 and 0.15 more does. Min-p wants 0.4 times the highest "
        "probability, 0.5 of what top-p left, so the third goes.",
    )
    return


if __name__ == "__main__":
    app.run()
