"""No page leaves a model's context limit: neither a formula's argument nor a sentence that names the model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from minillm import catalog
from visualizers.site.errors import Problem
from visualizers.site.project import Page
from visualizers.site.quantities import find
from visualizers.site.scan import Token
from visualizers.site.values import FormulaError

# Arguments of a model's methods that are the length of one sequence; after a prompt there must be room to answer.
_CONTEXTS, _PROMPTS = ("context_tokens",), ("tokens", "prompt_tokens")
_UNIT = re.compile(r"(?:(?:thousand|million) )?tokens?")


class WithinLimit:
    """A catalogued model whose methods refuse a sequence that the model cannot take."""

    def __init__(self, name: str, model: catalog.Model) -> None:
        self._name, self._model = name, model

    def __dir__(self) -> Iterable[str]:
        return dir(self._model)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if not inspect.ismethod(found):
            return found

        def call(*positional: Any, **named: Any) -> Any:
            given = inspect.signature(found).bind(*positional, **named).arguments
            limit = self._model.context_tokens
            for argument, tokens in given.items():
                if argument in _CONTEXTS and tokens > limit:
                    raise FormulaError(f"{self._name} takes {limit:,} tokens, not {tokens:,}: name a model that does")
                if argument in _PROMPTS and tokens >= limit:
                    raise FormulaError(
                        f"{self._name} takes {limit:,} tokens: a prompt of {tokens:,} leaves no room for an answer"
                    )
            return found(*positional, **named)

        return call


def check(page: Page) -> Iterator[Problem]:
    """Sentences (or rows of a table) that name a model and more tokens than that model takes."""
    titles = {model.title: model.context_tokens for model in catalog.models().values()}
    for line, tokens in groupby(page.tokens, key=lambda token: token.line):
        for sentence in re.split(r"(?<=[.:;])\s", "".join(map(_visible, tokens))):
            named = [title for title in titles if re.search(rf"(?<!\w){re.escape(title)}(?!\w)", sentence)]
            if not named:
                continue
            limit, title = max((titles[title], title) for title in named)
            for quantity in find(sentence):
                if _UNIT.fullmatch(quantity.unit) and max(quantity.values) > limit:
                    yield Problem(
                        page.file,
                        line,
                        f"{quantity.text.strip()!r} stands in one sentence with {title}, which takes {limit:,} tokens: "
                        "name a model that takes as many, or say in another sentence that these are several sequences",
                    )


def _visible(token: Token) -> str:
    return token.text if token.kind in ("text", "computed", "cited", "assumed", "link") else " "
