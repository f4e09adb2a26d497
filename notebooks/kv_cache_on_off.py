# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""The time of the next token with the KV cache and without it, measured here and now."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The KV cache, on and off")

with app.setup:
    import marimo as mo

    from minillm.backends.plans import plan_of
    from visualizers import notebook
    from visualizers.figures.kv_cache_on_off import VISUALIZER
    from visualizers.runs.cache_race import MEASURED, Race, race


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    lengths = [length for length in MEASURED if length <= inputs["length"]]
    for _length in mo.status.progress_bar(lengths, title="Measuring", remove_on_exit=True):
        race().reach(_length)
    data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (data,)


@app.cell
def _(data):
    data  # after the measurement
    # Equal logits: the largest difference at each length, beside the largest logit.
    mo.ui.table(
        [
            {
                "tokens": lap.length,
                "with the cache (ms)": round(1e3 * lap.with_s, 2),
                "without (ms)": round(1e3 * lap.without_s, 2),
                "largest difference of logits": lap.max_difference,
                "largest logit": round(lap.largest_logit, 2),
                "same next token": lap.same_token,
            }
            for lap in race().laps
        ],
        selection=None,
        page_size=12,
    )
    return


@app.cell
def _():
    notebook.code(Race, plan_of)
    return


if __name__ == "__main__":
    app.run()
