# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""One set of requests in blocks of 4 and of 16 tokens: what a table reserves and does not fill."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The block manager: blocks of 4 and of 16 tokens")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.compare import HELD_BYTES
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.kv_manager.KVManager.reserve: a request gets all the blocks that it lacks, or none. Reserve for
    # `request.max_total_tokens` at once, and A holds from the start what its longest answer needs.
    def reserve(self, request, num_tokens):
        wanted = [group.missing(request, num_tokens) for group in self.groups]
        if sum(missing + is_shared for missing, is_shared in wanted) > self.pool.num_free:
            return False
        for group, (missing, is_shared) in zip(self.groups, wanted, strict=True):
            group.fill(request, missing, is_shared)
        return True

    mine = {"kv.reserve": reserve}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = ("We will build", "The state of our union is", "My fellow citizens, I have", "In the last year the debt")
    recipe = Recipe(
        title="Blocks of 4 and of 16 tokens",
        lever="block",
        a=Setup(block="4", pool="512", batch="16"),
        b=Setup(block="16", pool="512", batch="16"),
        requests=every(0.0, prompts, (15, 16), 16),
        prompts=prompts,
        max_tokens=24,
        rounds=3,
        speed=0.1,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    blocks = exercise.ask(
        "A prompt of 30 tokens gets an answer of 22. Blocks have 16 tokens, and the keys and values of the last token "
        "are never computed. How many blocks does the request hold at its end?"
    )
    blocks
    return (blocks,)


@app.cell
def _(blocks):
    def solve():
        record = exercise.record(every(0.0, (30,), (22,), 1))
        return max(row[HELD_BYTES] for row in record.rows) // record.block_bytes

    exercise.check(
        blocks,
        "blocks",
        solve,
        "51 tokens are stored: three full blocks have 48 of them, and the last three need a fourth.",
    )
    return


if __name__ == "__main__":
    app.run()
