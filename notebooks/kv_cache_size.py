# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""One request that grows, then a burst: how many requests a pool of KV memory holds at once."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="KV cache size: a large pool and a small one")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import Ask, every
    from visualizers.desk.compare import HELD_BYTES
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.kv_manager.KVManager.needed: the free blocks that a request needs for all its known tokens, and must
    # find to be admitted. Return twice as many, and the last of the burst waits for room to spare.
    def needed(self, request, hit):
        pairs = zip(self.groups, hit.groups, strict=True)
        return sum(group.needed(hit.num_tokens, request.num_known, its.held) for group, its in pairs)

    mine = {"kv.needed": needed}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    # One request grows alone, then eight come at once, each with a prompt of 900 tokens.
    recipe = Recipe(
        title="A large pool and a small one",
        lever="pool",
        a=Setup(pool="8192", batch="16", prefix_cache="off"),
        b=Setup(pool="2048", batch="16", prefix_cache="off"),
        requests=(Ask(0.0, 64, 160), *every(0.0, (900,), (100,), 8)),
        prompts=(900,),
        max_tokens=100,
        clock="modelled/h100-sxm",
        model="llama-3.1-8b",
        speed=0.25,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    size = exercise.ask(
        "Llama 3.1 8B keeps the keys and values of 32 layers with 8 KV heads of 128 numbers each, in 2 bytes. How many "
        "bytes of KV memory does a request hold that has computed 100 tokens, in blocks of 16?"
    )
    size
    return (size,)


@app.cell
def _(size):
    def solve():
        record = exercise.record(every(0.0, (100,), (2,), 1))
        return max(row[HELD_BYTES] for row in record.rows)

    exercise.check(
        size,
        "bytes",
        solve,
        "2 · 32 · 8 · 128 · 2 bytes are 131,072 a token. Seven blocks have room for 112 tokens: 14,680,064 bytes, of "
        "which 12 tokens' are empty.",
    )
    return


if __name__ == "__main__":
    app.run()
