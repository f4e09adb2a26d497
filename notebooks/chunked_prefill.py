# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""A long prompt arrives while others decode: read whole in one step, and in chunks between their tokens."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Chunked prefill: in chunks and whole")

with app.setup:
    from minillm.core.scheduler import SCORED_CHUNK
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import Ask, every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.scheduler.Scheduler._chunk: how many tokens of a prompt run in this step. Take
    # `self._config.chunk_size or gap` out of the `min`, and A becomes B.
    def _chunk(self, request, gap, budget):
        if not self._config.chunked_prefill:
            return gap if gap <= budget else 0
        if gap > 1:
            used = self._config.max_batch_tokens - budget
            gap = min(gap, self._config.chunk_size or gap, self._order.max_chunk(request, used))
            if request.wants_prompt_logits:
                gap = min(gap, SCORED_CHUNK)
        return min(gap, budget)

    mine = {"scheduler._chunk": _chunk}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    # Eight requests decode; three long prompts arrive meanwhile.
    recipe = Recipe(
        title="A long prompt in chunks and whole",
        lever="chunk",
        a=Setup(chunk="256", pool="16384", batch="16"),
        b=Setup(chunk="whole", pool="16384", batch="16"),
        requests=(*every(0.0, (64,), (110,), 8), *(Ask(at_s, 2000, 8) for at_s in (0.1, 0.25, 0.4))),
        prompts=(64, 2000),
        clock="modelled/h100-sxm",
        model="llama-3.1-8b",
        speed=0.1,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    steps = exercise.ask(
        "A prompt of 2,000 tokens comes alone to an engine that reads prompts in chunks of 256 tokens. How many steps "
        "does it take until the first token of its answer?"
    )
    steps
    return (steps,)


@app.cell
def _(steps):
    def solve():
        asks = every(0.0, (2000,), (1,), 1)
        return exercise.record(asks, Setup(chunk="256", pool="4096")).num_steps

    exercise.check(
        steps,
        "steps",
        solve,
        "Seven chunks have 1,792 tokens; the eighth has the other 208, and its last row of logits gives the first "
        "token. More steps, each of them short.",
    )
    return


if __name__ == "__main__":
    app.run()
