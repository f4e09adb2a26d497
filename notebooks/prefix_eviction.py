# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""Conversations under one system prompt and documents that come once: which cached blocks a small pool gives up."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Eviction: least recently or least often used")

with app.setup:
    import heapq

    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import Ask, every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.kv.eviction.PriorityEvictor.add: a free block that keeps its content is ranked by how often it was
    # used; the lowest goes first. Rank by `self._count` alone, and A becomes B, the least recently used.
    def add(self, block):
        self._count += 1
        priority = self._clock + self._uses[block] * self._costs[block]
        entry = self._live[block] = (priority, self._count, block)
        heapq.heappush(self._heap, entry)

    mine = {"kv.pool._evictor.add": add}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    # In modelled time a byte is a token. Three system prompts take turns; from the third turn on, two documents come
    # in each that nobody asks for again. All of a turn is more than the pool holds.
    system = [f"Agent {name} answers by its own rules, and in one sentence. " * 16 for name in "ABC"]
    talks = tuple(Ask(round(0.16 * i, 2), f"{system[i % 3]}Question {i}?", 16) for i in range(27))
    documents = tuple(Ask(round(0.16 * i + 0.1, 2), 1300, 4) for i in range(5, 27) if i % 3)
    recipe = Recipe(
        title="Eviction by last use and by frequency",
        lever="eviction",
        a=Setup(eviction="lfu", pool="4096"),
        b=Setup(eviction="lru", pool="4096"),
        requests=tuple(sorted(talks + documents, key=lambda ask: ask.at_s)),
        prompts=(*(f"{one}And what else?" for one in system), 1300),
        max_tokens=16,
        clock="modelled/h100-sxm",
        model="llama-3.1-8b",
        speed=0.5,
    )
    notebook.desk(show(recipe, replace=mine))
    return


@app.cell
def _():
    evicted = exercise.ask(
        "A pool of 8 blocks of 16 tokens holds 3 blocks of a prompt that was used twice, and 4 of one that was used "
        "once. A request with a new prompt of 80 tokens and an answer of one token comes. How many blocks of the "
        "prompt that was used twice are given up, if the least often used go first?"
    )
    evicted
    return (evicted,)


@app.cell
def _(evicted):
    def solve():
        prompts = ("a" * 49, "a" * 49, "b" * 64, "c" * 80, "a" * 49)
        asks = every(10.0, prompts, (1,), 5)
        return 3 - exercise.record(asks, Setup(pool="128", eviction="lfu")).lanes[5].cached_tokens // 16

    exercise.check(
        evicted,
        "blocks",
        solve,
        "The new prompt takes 5 blocks: the free one and the 4 that were used once.",
    )
    return


if __name__ == "__main__":
    app.run()
