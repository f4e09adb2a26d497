# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Drafts as long as their acceptance pays for, and drafts of eight tokens whatever becomes of them."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Where drafts pay: their length by acceptance and fixed")

with app.setup:
    from minillm.speculate.adaptive import expected_speedup
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.speculate.adaptive.best_length: how many tokens are worth their time, by the acceptance that a request
    # has shown so far. Return `longest`, and A becomes B; return 0, and it drafts nothing.
    def best_length(acceptance, token_cost, longest):
        return max(range(longest + 1), key=lambda k: (expected_speedup(acceptance, k, token_cost), -k))

    def length(self, request_id):
        found = best_length(self.acceptance(request_id), self._token_cost, self._longest)
        type(self).length(self, request_id)  # the engine's own: what was measured fades while nothing is drafted
        return found

    mine = {"speculator._lengths.length": length}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    await notebook.fetch_model("tiny-draft")
    prompts = (
        "The report of the Secretary shows that",
        "Congress has passed a law which",
        "Our relations with other nations are",
        "In the last year the public debt",
    )
    recipe = Recipe(
        title="Drafts by acceptance and of a fixed length",
        lever="draft_length",
        a=Setup(speculate="draft", draft_tokens="8", draft_length="adaptive"),
        b=Setup(speculate="draft", draft_tokens="8", draft_length="fixed"),
        requests=every(0.0, prompts, (64,), 8),
        prompts=prompts,
        max_tokens=64,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    longest = exercise.ask(
        "A drafted token is kept with a chance of 0.6, and to draft and verify it costs 0.2 of a decode step. How many"
        " tokens should a draft have, of at most 8?"
    )
    longest
    return (longest,)


@app.cell
def _(longest):
    def solve():
        return max(range(9), key=lambda tokens: expected_speedup(0.6, tokens, 0.2))

    exercise.check(
        longest,
        "tokens",
        solve,
        "Two: 1.96 tokens in the time of 1.4 steps, or 1.4 a step. One gives 1.6 in 1.2, three give 2.18 in 1.6: both "
        "are less a step.",
    )
    return


if __name__ == "__main__":
    app.run()
