# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""What a grammar's mask leaves of the bundled model's next token, while it writes an output token by token."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="What the mask leaves")

with app.setup:
    import json
    import time

    import marimo as mo

    from minillm.core.request import RequestError
    from minillm.core.sampling import SamplingParams
    from minillm.grammar import CompiledGrammar, GrammarError
    from minillm.grammar.walks import Walks
    from minillm.llm import LLM
    from visualizers import notebook
    from visualizers.figures.structured_output import VISUALIZER
    from visualizers.runs.structured_run import GRAMMARS


@app.cell
async def _():
    await notebook.fetch_model("tiny")
    ui = notebook.controls(VISUALIZER)
    mo.vstack([notebook.style(), ui.hstack(wrap=True, justify="start")])
    return (ui,)


@app.cell
def _(ui):
    inputs = notebook.read(VISUALIZER, ui)
    data = VISUALIZER.compute(inputs)
    notebook.show(VISUALIZER, data)
    return (inputs,)


@app.cell
def _(inputs):
    # A grammar of your own, and the beginning of an output: which tokens may follow?
    chosen = GRAMMARS[inputs["grammar"]]
    text = chosen.text if isinstance(chosen.text, str) else json.dumps(chosen.text, indent=1)
    source = mo.ui.text_area(text, label=f"{chosen.title} (as you like)", rows=8, full_width=True)
    so_far = mo.ui.text("", label="Text so far", full_width=True)
    mo.vstack([source, so_far])
    return chosen, so_far, source


@app.cell
def _(chosen, so_far, source):
    llm = LLM("tiny")
    try:
        grammar = llm.compile_grammar(chosen.kind, source.value)
        state, reached = grammar.start(), ""
        for token_id in llm.encode(so_far.value) if so_far.value else []:
            after = grammar.advance(state, token_id)
            mo.stop(after is None, mo.md(f"Refused after “{reached}”: no text of the grammar goes on like that."))
            state, reached = after, reached + llm.tokenizer.decode([token_id])
        times = []
        for _ in range(2):
            started = time.perf_counter()
            allowed = grammar.allowed(state)
            times.append(f"{(time.perf_counter() - started) * 1e3:,.3f} ms")
        ids = [i for i in range(grammar.vocab_size) if allowed >> i & 1]
        names = [llm.tokenizer.token_bytes(i).decode(errors="replace") for i in ids[:40]]
        params = SamplingParams(grammar=grammar, max_tokens=48, seed=1)
        written = llm.generate(chosen.prompt, params)[0].text
        found = mo.vstack(
            [
                mo.md(f"{len(ids):,} tokens may follow; the mask took {times[0]}, the same again {times[1]}."),
                notebook.quoted("  ".join(map(repr, names))),
                mo.md("The model writes:"),
                notebook.quoted(written),
            ]
        )
    except (GrammarError, RequestError) as error:
        found = mo.callout(str(error), kind="warn")
    found
    return


@app.cell
def _():
    notebook.code(CompiledGrammar.allowed, CompiledGrammar.advance, Walks.walk)
    return


if __name__ == "__main__":
    app.run()
