# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Eight drafted tokens as a tree of guesses and as one chain: where the first guess fails, a tree has others."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Token trees: a tree and a chain")

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
    # minillm.speculate.draft_tree.DraftTree._choose_level: which of the new guesses the draft model goes on from.
    # Keep `candidates[:1]` instead, and the tree goes deep where A went wide.
    def _choose_level(self, tree):
        wanted = tree.ask.max_tokens
        order = sorted(range(len(tree.tokens)), key=lambda n: -tree.scores[n])
        candidates = [n for n in order[:wanted] if tree.parents[n] in tree.level]
        room = wanted - len(tree.run)
        is_deep = not candidates or len(tree.path(candidates[0])) >= tree.depth
        tree.level = [] if is_deep else candidates[: min(self._width, room)]
        tree.run.extend(tree.level)

    mine = {"speculator.drafter._choose_level": _choose_level}
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
        title="A tree of guesses and a chain",
        lever="speculate",
        a=Setup(speculate="tree", draft_tokens="8"),
        b=Setup(speculate="draft", draft_tokens="8"),
        requests=every(0.0, prompts, (64,), 4),
        prompts=prompts,
        max_tokens=64,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "Both draft eight tokens a step. What a tree keeps more of is told by tokens a step; whether it is "
        "quicker depends on what verifying costs, which for a target as small as this one is much.",
    )
    return


@app.cell
def _():
    kept = exercise.ask(
        "A tree has five tokens: 5 and 6 after the last known one, 7 and 8 after the 6, and 9 after the 8. The target "
        "draws 6 first, then 8 after the 6, then 4 after the 8. How many tokens does the step yield?"
    )
    kept
    return (kept,)


@app.cell
def _(kept):
    def solve():
        tree = Draft([5, 6, 7, 8, 9], parents=[-1, -1, 1, 1, 3])
        return len(draws_that_count(accepted_path(tree, [6, 0, 8, 0, 4, 0])))

    exercise.check(
        kept,
        "tokens",
        solve,
        "6 and 8 are kept, on the second branch, and 4 is the draw after them. A chain that began with 5 would have "
        "kept nothing.",
    )
    return


if __name__ == "__main__":
    app.run()
