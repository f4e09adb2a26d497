"""Evaluates the marks of a page once, for the page, for its Markdown twin and for the checks alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from visualizers.site.errors import Problem
from visualizers.site.formulas import Result, evaluate
from visualizers.site.numbers import disagreement
from visualizers.site.project import Page
from visualizers.site.reference import Source
from visualizers.site.scan import Token
from visualizers.site.values import FormulaError, Namespace


@dataclass(frozen=True)
class Computed:
    """A number that agrees with its formula."""

    text: str
    result: Result

    @property
    def explanation(self) -> str:
        """The formula, the same with its values where they say more, and the result, a line each."""
        result = self.result
        if result.given:
            return "Chosen for this example."
        if result.with_values in (result.formula, self.text):
            return f"{result.formula}\n= {self.text}"
        return f"{result.formula}\n= {result.with_values}\n= {self.text}"


@dataclass(frozen=True)
class Cited:
    """A number or a name with its sources; ``positions`` are their numbers in the page's list."""

    text: str
    sources: tuple[Source, ...]
    positions: tuple[int, ...]

    @property
    def explanation(self) -> str:
        return " ".join(source.short for source in self.sources)


Marks = Mapping[Token, Computed | Cited]


def resolve(page: Page, namespace: Namespace, bibliography: Mapping[str, Source]) -> tuple[Marks, list[Problem]]:
    """Every mark of ``page`` that holds, and a finding for each that does not."""
    marks: dict[Token, Computed | Cited] = {}
    problems: list[Problem] = []
    for token in page.tokens:
        mark: Computed | Cited | None
        if token.kind == "computed":
            mark, message = _computed(token, namespace)
        elif token.kind == "cited":
            mark, message = _cited(token, page, bibliography)
        else:
            continue
        if token.heading:
            message = f"[{token.text}] stands in a heading: say it in the text below"
        if message:
            problems.append(Problem(page.file, token.line, message))
        elif mark is not None:
            marks[token] = mark
    return marks, problems


def _computed(token: Token, namespace: Namespace) -> tuple[Computed | None, str]:
    try:
        result = evaluate(token.argument, namespace)
    except FormulaError as error:
        return None, f"[{token.text}]: {error}"
    message = disagreement(token.text, result)
    return (None, message) if message else (Computed(token.text, result), "")


def _cited(token: Token, page: Page, bibliography: Mapping[str, Source]) -> tuple[Cited | None, str]:
    keys = [key.strip() for key in token.argument.split(",")]
    for key in keys:
        if key not in bibliography:
            return None, f"[{token.text}] cites {key!r}, which is not in handbook/bibliography.yml"
        if key not in page.meta.sources:
            return None, f"[{token.text}] cites {key!r}, which the page's `sources` do not name"
    positions = tuple(page.meta.sources.index(key) + 1 for key in keys)
    return Cited(token.text, tuple(bibliography[key] for key in keys), positions), ""
