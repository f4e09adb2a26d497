# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Requests in a pool too small for all of them: the victims' tokens are computed again, or their K/V is swapped."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Preemption: computed again and swapped")

with app.setup:
    from minillm.core.request import Status
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.scheduler.Scheduler._make_room: who gives way when a running request finds no block. Take `min` for
    # `max`, and the one that came first is thrown out.
    def _make_room(self, request, num_tokens, decided):
        while not self._kv.reserve(request, num_tokens):
            victim = max(self.running, key=self._order.standing)
            self._preempt(victim, decided)
            if request.status is not Status.RUNNING:
                return False
        return True

    mine = {"scheduler._make_room": _make_room}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = (
        "The report of the Secretary shows that the public revenue has grown in the past year, while the debt",
        "Our relations with other nations are good, and the treaties that were signed in the spring have",
        "I ask the Congress to look with care at the law that governs the sale of public lands, since",
        "The Army has kept the peace on the frontier, and the Navy is in good order; its ships",
    )
    recipe = Recipe(
        title="A pool that is too small",
        lever="preemption",
        a=Setup(preemption="swap", pool="512", batch="8", prefix_cache="off"),
        b=Setup(preemption="recompute", pool="512", batch="8", prefix_cache="off"),
        requests=every(0.0, prompts, (96, 72, 84), 8),
        prompts=prompts,
        max_tokens=84,
        rounds=3,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "Both preempt the same requests. Swapped ones come back with their keys and values; the others are read "
        "again, their answers so far included.",
    )
    return


@app.cell
def _():
    victim = exercise.ask(
        "Two requests with prompts of 16 tokens and answers of 60 come at once to a pool of 8 blocks of 16 tokens, "
        "with no prefix cache. How many tokens are computed a second time?"
    )
    victim
    return (victim,)


@app.cell
def _(victim):
    def solve():
        asks = every(0.0, (16,), (60,), 2)
        record = exercise.record(asks, Setup(pool="128", prefix_cache="off"))
        return sum(event.computed for event in record.trace if event.kind == "preempt")

    exercise.check(
        victim,
        "tokens",
        solve,
        "Both hold four full blocks, 64 tokens each, when the first needs a fifth. The second gives up its blocks, "
        "waits for the first to end, and computes its 64 tokens again.",
    )
    return


if __name__ == "__main__":
    app.run()
