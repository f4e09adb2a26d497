"""Evaluates the marks of a page once, for the page, for its Markdown twin and for the checks alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from visualizers.site.errors import Problem
from visualizers.site.formulas import Result, evaluate
from visualizers.site.numbers import disagreement
from visualizers.site.project import Page
from visualizers.site.quantities import find
from visualizers.site.reference import Source
from visualizers.site.scan import Token
from visualizers.site.units import RATIOS
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


@dataclass(frozen=True)
class Assumed:
    """A number that is neither computed nor from a source; ``why`` it was chosen, where the page says it."""

    text: str
    why: str

    @property
    def explanation(self) -> str:
        return f"Assumed: {self.why}." if self.why else "Assumed for this example."


Mark = Computed | Cited | Assumed
Marks = Mapping[Token, Mark]


def resolve(page: Page, namespace: Namespace, bibliography: Mapping[str, Source]) -> tuple[Marks, list[Problem]]:
    """Every mark of ``page`` that holds, and a finding for each that does not."""
    marks: dict[Token, Mark] = {}
    problems: list[Problem] = []
    for token in page.tokens:
        mark: Mark | None
        if token.kind == "computed":
            mark, message = _computed(token, namespace)
        elif token.kind == "cited":
            mark, message = _cited(token, page, bibliography)
        elif token.kind == "assumed":
            mark, message = _assumed(token)
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
    if result.given:
        return None, (
            f"[{token.text}]: `{token.argument}` only says the number again: write [{token.text}]{{~ why}} where it is "
            "assumed, or the formula that gives it"
        )
    message = disagreement(token.text, result)
    return (None, message) if message else (Computed(token.text, result), "")


def _cited(token: Token, page: Page, bibliography: Mapping[str, Source]) -> tuple[Cited | None, str]:
    keys = [key.strip() for key in token.argument.split(",")]
    for key in keys:
        if key not in bibliography:
            return None, f"[{token.text}] cites {key!r}, which is not in handbook/bibliography.yml"
        if key not in page.meta.sources:
            return None, f"[{token.text}] cites {key!r}, which the page's `sources` do not name"
    if message := _quoted(token.text, [bibliography[key] for key in keys]):
        return None, message
    positions = tuple(page.meta.sources.index(key) + 1 for key in keys)
    return Cited(token.text, tuple(bibliography[key] for key in keys), positions), ""


def _quoted(text: str, sources: Sequence[Source]) -> str:
    """Why no source has the number; an empty string where one has it, or the text has no number."""
    if not list(find(text)) or any(text in source.values for source in sources):
        return ""
    return (
        f"[{text}] is not among the `values` of {' or '.join(source.key for source in sources)} in "
        "handbook/bibliography.yml, which were compared with the source: compare this one, then list it there"
    )


def _assumed(token: Token) -> tuple[Assumed | None, str]:
    found = list(find(token.text))
    if not found:
        return None, f"[{token.text}] has no number that could be assumed"
    if any(quantity.unit in RATIOS for quantity in found):
        return None, f"[{token.text}] says how much more one thing is than another: compute or cite it"
    return Assumed(token.text, token.argument), ""
