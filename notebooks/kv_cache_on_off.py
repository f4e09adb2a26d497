# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""One set of requests on an engine that computes every token again in each step, and on one that keeps K and V."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The KV cache: off and on")

with app.setup:
    from dataclasses import replace

    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup
    from visualizers.desk.uncached import Uncached


@app.cell
def _():
    # visualizers.desk.uncached.Uncached.whole: what a step of engine A computes, which has no KV cache: every token of
    # its requests, from the first one on. Return `plan` as it came, the new tokens alone, and A becomes B.
    def whole(self, plan):
        size, every = plan.block_size, replace(plan, positions=[], slot_mapping=[], query_start_loc=[0])
        for table, length in zip(plan.block_tables, plan.seq_lens, strict=True):
            every.positions += range(length)
            every.slot_mapping += [table[p // size] * size + p % size for p in range(length)]
            every.query_start_loc.append(len(every.slot_mapping))
        every.token_ids = [self._tokens[slot] for slot in every.slot_mapping]
        every.logits_indices = [self._moved(token, plan, every) for token in plan.logits_indices]
        return every

    mine = {"backend.whole": whole}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = ("My fellow citizens, the state of the Union", "The report of the Secretary shows that")
    recipe = Recipe(
        title="KV cache off and on",
        lever="kv_cache",
        a=Setup(kv_cache="off"),
        b=Setup(kv_cache="on"),
        requests=every(0.0, prompts, (112,), 2),
        prompts=prompts,
        max_tokens=112,
        rounds=3,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "Both plan the same tokens in each step; engine A computes all tokens before them again, which the plot "
        "of the batch does not count. Its gaps grow with the length of the text.",
    )
    return


@app.cell
def _():
    rows = exercise.ask(
        "A prompt of 4 tokens gets an answer of 3. Without a KV cache every step computes all tokens that are known. "
        "How many tokens does the engine compute in the three steps?"
    )
    rows
    return (rows,)


@app.cell
def _(rows):
    def solve():
        counted = []

        def counting(self, plan):
            counted.append(len(Uncached.whole(self, plan).token_ids))
            return Uncached.whole(self, plan)

        recipe = Recipe(
            a=Setup(kv_cache="off"), requests=every(0.0, (4,), (3,), 1), clock="modelled", model="llama-3.1-8b"
        )
        exercise.play(recipe, {"backend.whole": counting})
        return sum(counted)

    exercise.check(
        rows,
        "tokens",
        solve,
        "4 + 5 + 6. With the cache it would be 4 + 1 + 1.",
    )
    return


if __name__ == "__main__":
    app.run()
