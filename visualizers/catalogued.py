"""The inputs by which a reader picks from the catalogue, a model and an accelerator, and the limit of a model."""

from __future__ import annotations

from typing import Any

from minillm import catalog
from minillm.catalog import Model
from minillm.costs.arithmetic import where
from visualizers.contract import Choice

# Of a figure that takes a model and a context: whether the model takes that many tokens at all.
LIMIT_UNITS = {"within_limit": "", "context_limit_tokens": "tokens"}
LIMIT_SENTENCE = " That context is {within_limit} the limit of the model, {context_limit_tokens|int} tokens."


def context_limit(model: Model, context_tokens: Any) -> dict[str, Any]:
    """The values of :data:`LIMIT_UNITS`, which :data:`LIMIT_SENTENCE` tells the reader."""
    within = where(context_tokens <= model.context_tokens, "within", "beyond")
    return {"within_limit": within, "context_limit_tokens": model.context_tokens}


def model_choice(note: str = "", *, title: str = "Model", more: bool = False) -> Choice:
    """Every model of the catalogue. ``note``: what is said of it besides where its sizes are from."""
    titles = {slug: model.title for slug, model in catalog.models().items()}
    return Choice("model", title, "llama-3.1-8b", titles, f"Sizes as in the published config{note}.", more=more)


def accelerator_choice(about: str, *, more: bool = False) -> Choice:
    """Every accelerator of the catalogue. ``about``: what a figure takes of it."""
    titles = {slug: machine.title for slug, machine in catalog.accelerators().items()}
    return Choice("accelerator", "Accelerator", "h100-sxm", titles, about, more=more)
