# /// script
# requires-python = ">=3.11"
# dependencies = ["marimo==0.25.2", "inference-handbook==0.1.0"]
# ///
"""The same prompts with a JSON schema and without: a mask leaves the tokens after which the text can still be valid."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Structured output: a JSON schema and none")

with app.setup:
    import math

    from minillm.core.sampling import sample
    from minillm.core.sampling.shaping import mask_bytes
    from minillm.grammar import Vocabulary, compile_regex
    from visualizers import notebook
    from visualizers.desk import exercise
    from visualizers.desk.app import show
    from visualizers.desk.asks import every
    from visualizers.desk.recipe import Recipe
    from visualizers.desk.setup import Setup


@app.cell
def _():
    # minillm.core.sampling.shaping.shaped: the logits of one draw after penalties, biases, bans and the grammar's mask. Leave the
    # mask out, and the engine stops at the first token that the grammar does not allow.
    def shaped(logits, transform):
        result = list(logits)
        for token_id, repetition, subtracted in transform.penalties():
            logit = result[token_id]
            result[token_id] = (logit / repetition if logit > 0 else logit * repetition) - subtracted
        for token_id, bias in transform.bias.items():
            result[token_id] += bias
        for token_id in transform.banned:
            result[token_id] = -math.inf
        if transform.allowed is not None:
            bits = mask_bytes(transform.allowed, len(result))
            result = [x if bits[i >> 3] >> (i & 7) & 1 else -math.inf for i, x in enumerate(result)]
        return result

    def draw(self, hidden, plan, result):
        rows = self.decoder.logits(hidden).tolist()
        rows = [shaped(row, plan.transforms[i]) if i in plan.transforms else row for i, row in enumerate(rows)]
        result.token_ids = [sample(*one) for one in zip(rows, plan.sampling, plan.uniforms, strict=True)]

    mine = {"backend.draw": draw}
    return (mine,)


@app.cell
async def _(mine):
    await notebook.fetch_model("tiny")
    prompts = ("The members of the Senate and their states: ", "The votes were counted, and the Senator is ")
    recipe = Recipe(
        title="A JSON schema and none",
        lever="grammar",
        a=Setup(grammar="schema"),
        b=Setup(grammar="none"),
        requests=every(0.0, prompts, (40,), 8),
        prompts=prompts,
        max_tokens=40,
        rounds=3,
        speed=0.25,
    )
    notebook.desk(
        show(recipe, replace=mine),
        "A masks and draws by the notebook's functions in plain Python, so its steps take longer than those of B."
        " The engine's own mask is a few bytes for each row, applied to all rows at once.",
    )
    return


@app.cell
def _():
    allowed = exercise.ask(
        "An output has to match the pattern (cat|car|cart|dog), and tokens are single bytes. So far it is car. How "
        "many tokens may come next, the end of the text included?"
    )
    allowed
    return (allowed,)


@app.cell
def _(allowed):
    def solve():
        vocabulary = Vocabulary([bytes([i]) for i in range(256)] + [None], {256})
        grammar = compile_regex("(cat|car|cart|dog)", vocabulary)
        state = grammar.start()
        for byte in b"car":
            state = grammar.advance(state, byte)
        return grammar.allowed(state).bit_count()

    exercise.check(
        allowed,
        "tokens",
        solve,
        "The letter t, which leads to cart, and the end, since car is a whole output itself.",
    )
    return


if __name__ == "__main__":
    app.run()
