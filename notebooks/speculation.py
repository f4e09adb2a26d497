# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Drafts of a small model, verified by the large one: more tokens in a step, and the same text."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Speculative decoding: drafts and none")

with app.setup:
    from minillm.speculate.accept import accepted_path, draws_that_count
    from minillm.speculate.draft import Draft
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.speculate.speculator.Speculator.accept: which drafted tokens are kept. `accepted_path` keeps those that
    # the target's own draws equal. Set `path = path[:1]` after it, and a step keeps one of them at most.
    def accept(self, part, draws):
        draft, request = part.draft, part.request
        path = accepted_path(draft, draws)
        self._lengths.observe(request.request_id, draft.depth, len(path))
        self._num_accepted[request.request_id] = len(path)
        if self.wants_hidden:
            self._hidden.accept(request.request_id, path)
        return path

    mine = {"speculator.accept": accept}
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
        title="Drafts and none",
        lever="speculate",
        a=Setup(speculate="draft"),
        b=Setup(speculate="none"),
        requests=every(0.0, prompts, (64,), 4),
        prompts=prompts,
        max_tokens=64,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "A yields more tokens in a step, and its steps take longer: for a target as small as this one, drafting "
        "and verifying cost more time than they save. The step counts are what carries over to a model whose "
        "steps wait for memory.",
    )
    return


@app.cell
def _():
    draws = exercise.ask(
        "A draft has four tokens: 5, 7, 7, 2. The target draws 5, 7, 3, 2, 9 in the places of these four and after "
        "them. How many tokens does the step yield?"
    )
    draws
    return (draws,)


@app.cell
def _(draws):
    def solve():
        return len(draws_that_count(accepted_path(Draft([5, 7, 7, 2]), [5, 7, 3, 2, 9])))

    exercise.check(
        draws,
        "tokens",
        solve,
        "5 and 7 are kept. In the third place the target drew 3, which comes out in place of the drafted 7; what was "
        "drawn behind it followed a token that is not there.",
    )
    return


if __name__ == "__main__":
    app.run()
