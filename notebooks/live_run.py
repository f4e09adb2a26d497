# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""A request, token by token: the engine runs while you watch, and stops when you say so."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="A request, token by token")

with app.setup:
    import marimo as mo

    from minillm.core.request import RequestError
    from visualizers import notebook
    from visualizers.figures.live_run import VISUALIZER
    from visualizers.formats import format_value
    from visualizers.runs.one_request import Run

    # How far the engine runs between two drawings: long enough to get on, short enough to be followed.
    TICK_S, TICK_TOKENS = 0.1, 6


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER, "prompt", "block_size")
    # As many as the reader chose in the figure; where nothing was chosen, enough to watch them come.
    asked = notebook.asked(VISUALIZER, "tokens")
    asked = 160 if asked == VISUALIZER.defaults()["tokens"] else asked
    lengths = sorted({asked, *range(16, 257, 16)})
    length = mo.ui.slider(steps=lengths, value=asked, label="Output tokens", show_value=True)
    backends = notebook.backends()
    backend = mo.ui.dropdown(backends, value=next(iter(backends)), label="Computed by", allow_select_none=False)
    start = mo.ui.run_button(label="Run", kind="success")
    stop = mo.ui.run_button(label="Stop", kind="danger")
    mo.vstack(
        [
            notebook.style(),
            ui["prompt"],
            mo.hstack([start, stop, ui["block_size"], length, backend], wrap=True, justify="start"),
        ]
    )
    return backend, length, start, stop, ui


@app.cell
def _():
    # The run that is shown: whoever gets it runs again when it is set.
    get_run, set_run = mo.state(None)
    get_running, set_running = mo.state(False)
    return get_run, get_running, set_run, set_running


@app.cell
def _(backend, get_run, length, set_run, set_running, start, ui):
    # Enter in the prompt runs as the button does; on a page the reader has pressed "Run live" already.
    before = get_run()
    entered = before is not None and ui["prompt"].value != before.prompt
    if start.value or entered or (notebook.framed() and before is None):
        set_run(None)  # what an earlier prompt gave goes
        set_running(False)
        inputs = notebook.read(VISUALIZER, ui)
        kind, device = backend.value
        size = int(inputs["block_size"])
        run = Run(inputs["prompt"], block_size=size, max_tokens=length.value, backend=kind, device=device)
        set_run(run)
        set_running(True)
    return


@app.cell
def _(get_run, set_running, stop):
    if stop.value and get_run() is not None:
        get_run().stop()
        set_running(False)
    return


@app.cell
def _(get_running):
    # While the engine runs, this wakes the cell below again and again; else nothing wakes the kernel.
    tick = mo.ui.refresh(default_interval=0.1) if get_running() else mo.md("")
    notebook.hidden(tick)
    return (tick,)


@app.cell
def _(get_run, set_running, tick):
    tick  # each tick runs this cell
    shown = get_run()
    mo.stop(shown is None, mo.md("Press **Run**: the engine goes on from the prompt."))
    try:
        if shown.goes_on and not shown.advance(TICK_S, TICK_TOKENS):
            set_running(False)
    except RequestError as error:  # a prompt that the engine can never serve
        set_running(False)
        mo.stop(True, mo.callout(str(error), kind="warn"))
    data = shown.data()
    v = data.values
    numbers = {
        "KV blocks": format_value(v["kv_blocks"], "int"),
        "KV memory": format_value(v["kv_bytes"], "bytes"),
        "time to first token": format_value(v["ttft_s"], "seconds"),
        "last token after": format_value(v["itl_s"], "seconds"),
        "tokens/s": format_value(v["tokens_per_s"], "sig3"),
    } | {name: format_value(size, "bytes") for name, size in notebook.memory().items()}
    mo.vstack([notebook.numbers(numbers), notebook.chart(VISUALIZER, data), notebook.quoted(v["text"])])
    return


@app.cell
def _():
    notebook.code(Run.advance)
    return


if __name__ == "__main__":
    app.run()
