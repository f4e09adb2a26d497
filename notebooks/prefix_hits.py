# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Prompts with the same beginning, on an engine that finds it in the cache and on one that computes it each time."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Prefix cache: on and off")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every, poisson
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.kv_manager.KVManager.lookup: whole blocks only, and one token is left to compute, whose logits
    # give the first output. Look for 0 blocks, and A becomes B.
    def lookup(self, request):
        return self._lookup(request, (request.num_known - 1) // self.block_size)

    mine = {"kv.lookup": lookup}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    system = (
        "You write the messages of the President to the Congress. Be plain and brief, name the year and the sum of "
        "each account, and keep to the facts that the Departments report. Speak of the public debt, the revenue, the "
        "Army and the Navy, the Indian tribes, the public lands and the trade with foreign nations, in this order. "
        "Praise nobody. Where a law is needed, say what it should do and why, and leave the words of the law to the "
        "Congress. Close with the wish that peace may last. "
    )
    questions = ("What did the harvest bring?", "What does the Navy need?", "Report on the treaties.", "And the debt?")
    prompts = tuple(system * 2 + question for question in questions)
    recipe = Recipe(
        title="Prefix cache on and off",
        lever="prefix_cache",
        a=Setup(prefix_cache="on", pool="2048"),
        b=Setup(prefix_cache="off", pool="2048"),
        requests=poisson(3, prompts, (16, 24), 16),
        prompts=prompts,
        max_tokens=24,
        rounds=3,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    found = exercise.ask(
        "A request with a prompt of 40 tokens has ended. The same prompt comes again; blocks have 16 tokens. How many "
        "of its tokens are found in the cache?"
    )
    found
    return (found,)


@app.cell
def _(found):
    def solve():
        asks = every(10.0, ("a" * 40,), (4,), 2)
        return exercise.record(asks).lanes[2].cached_tokens

    exercise.check(
        found,
        "tokens",
        solve,
        "Two blocks are full, 32 tokens. The third has 8 of its 16, and only whole blocks are found.",
    )
    return


if __name__ == "__main__":
    app.run()
