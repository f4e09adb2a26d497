"""The inputs by which a reader picks from the catalogue: a model, an accelerator."""

from __future__ import annotations

from minillm import catalog
from visualizers.contract import Choice


def model_choice(note: str = "", *, title: str = "Model") -> Choice:
    """Every model of the catalogue. ``note``: what is said of it besides where its sizes are from."""
    titles = {slug: model.title for slug, model in catalog.models().items()}
    return Choice("model", title, "llama-3-8b", titles, f"Sizes as in the published config{note}.")


def accelerator_choice(about: str) -> Choice:
    """Every accelerator of the catalogue. ``about``: what a figure takes of it."""
    titles = {slug: machine.title for slug, machine in catalog.accelerators().items()}
    return Choice("accelerator", "Accelerator", "h100-sxm", titles, about)
