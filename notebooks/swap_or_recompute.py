# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""A preempted request in modelled time: its K/V over the accelerator's link and back, or its tokens computed again."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Swap or recompute: on an accelerator with its link")

with app.setup:
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.scheduler.Scheduler._swaps: whether the victim's keys and values go to the host. Return False, and A
    # becomes B; look at `request.num_computed_tokens`, and only the long ones are swapped.
    def _swaps(self, request):
        is_beam = request.group is not None and request.group.beams is not None
        return self._config.preemption == "swap" and request.num_computed_tokens > 0 and not is_beam

    mine = {"scheduler._swaps": _swaps}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    # Four prompts fill the pool to its last blocks: an answer of one takes blocks from another.
    recipe = Recipe(
        title="Swap or recompute",
        lever="link",
        a=Setup(preemption="swap", pool="16384", prefix_cache="off", link="5"),
        b=Setup(preemption="recompute", pool="16384", prefix_cache="off", link="5"),
        requests=every(0.0, (4080, 4070, 4090, 4085), (48, 40, 56), 16),
        prompts=(4080, 4070),
        clock="modelled/h100-sxm",
        model="llama-3.1-8b",
        speed=0.25,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "Copies over the link are taken as work that the steps wait for. With PCIe 3 the two are as good as "
        "equal: move the link.",
    )
    return


@app.cell
def _():
    moved = exercise.ask(
        "Two requests of Llama 3.1 8B, in blocks of 16 tokens that take 2 MiB each, run in a pool of 8 blocks: prompts "
        "of 16 tokens, answers of 60. When the first needs a fifth block, the second is swapped out, and back when the"
        " first has ended. How many MiB cross the link in all?"
    )
    moved
    return (moved,)


@app.cell
def _(moved):
    def solve():
        asks = every(0.0, (16,), (60,), 2)
        record = exercise.record(asks, Setup(pool="128", preemption="swap", prefix_cache="off"))
        moved = sum(event.tokens for event in record.trace if event.kind in ("swap_out", "swap_in"))
        return moved * record.block_bytes / 16 / 2**20

    exercise.check(
        moved,
        "MiB",
        solve,
        "Four blocks of 2 MiB go out, and the same four come back. Not more: the fifth was never filled.",
    )
    return


if __name__ == "__main__":
    app.run()
