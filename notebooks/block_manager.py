# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""A pool of KV blocks while requests share, free and evict them."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The block manager at work")

with app.setup:
    import marimo as mo

    from minillm.backends.hash_model import HashModel
    from minillm.core.config import EngineConfig
    from minillm.core.engine import Engine
    from minillm.core.kv_manager import KVManager
    from minillm.core.sampling import SamplingParams
    from visualizers import notebook
    from visualizers.figures.block_manager import VISUALIZER
    from visualizers.runs import block_moments


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER, "block_size", "prefix_caching")
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    # The slider ends where the chosen run ends.
    ended = len(block_moments.run(int(ui["block_size"].value), ui["prefix_caching"].value == "on").moments) - 1
    moment = notebook.controls(VISUALIZER, "step", end=ended)
    moment.hstack()
    return (moment,)


@app.cell
def _(moment, ui):
    inputs = VISUALIZER.parse({**ui.value, **moment.value})
    data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # An engine of your own, on a model whose next token is a hash of its prefix: what does the pool do?
    block_size = int(inputs["block_size"])
    engine = Engine(
        HashModel(vocab_size=16),
        EngineConfig(block_size=block_size, num_blocks=64 // block_size + 1, max_batch_tokens=24, record_trace=True),
    )
    shared = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1, 2]
    for tail in ([3, 4], [5, 6], [7, 8]):
        engine.add_request(shared + tail, SamplingParams(temperature=0, max_tokens=8))
    for _event in engine.run():
        pass
    touched = [e for e in engine.trace.events if e.blocks]
    mo.ui.table(
        [{"step": e.step, "request": e.request_id, "what": e.kind, "blocks": str(list(e.blocks))} for e in touched],
        selection=None,
        page_size=12,
    )
    return


@app.cell
def _():
    notebook.code(KVManager.reserve, KVManager.commit, KVManager.release)
    return


if __name__ == "__main__":
    app.run()
