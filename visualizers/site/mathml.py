"""Turns LaTeX into MathML at build, so that no script draws mathematics in the browser."""

from __future__ import annotations

import re
from functools import lru_cache

from latex2mathml.converter import convert

from visualizers.site.text import attribute, content


class MathError(ValueError):
    """The LaTeX cannot be converted; the message names what is not understood."""


# latex2mathml takes floor and ceiling signs for identifiers; as operators they are spaced like brackets.
_BRACKETS = re.compile(r"<mi>(&#x0230[89AB];)</mi>")
_TEXT = re.compile(r">([^<]+)<")


@lru_cache(maxsize=4096)
def to_mathml(latex: str, *, block: bool = False) -> str:
    """One ``math`` element, safe inside Markdown; its ``alttext`` is the LaTeX."""
    if not _is_balanced(latex):
        raise MathError(f"LaTeX {latex!r} has a brace that is not closed, or was not opened")
    try:
        markup = convert(latex, display="block" if block else "inline")
    except Exception as error:  # the library has an exception class for every kind of mistake
        raise MathError(f"LaTeX {latex!r} cannot be converted: {type(error).__name__} {error}".rstrip()) from error
    markup = _BRACKETS.sub(r'<mo stretchy="false">\1</mo>', markup)
    if unknown := re.search(r">(\\[a-zA-Z]+)<", markup):
        raise MathError(f"LaTeX {latex!r} uses {unknown.group(1)}, which is not understood: write it another way")
    markup = _TEXT.sub(lambda m: ">" + _keep_entities(m.group(1)) + "<", markup)
    return markup.replace("<math ", f'<math alttext="{attribute(latex)}" ', 1)


def _is_balanced(latex: str) -> bool:
    depth = 0
    for sign in re.findall(r"\\.|[{}]", latex, re.DOTALL):  # an escaped brace is a sign of its own
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth < 0:
            return False
    return depth == 0


def _keep_entities(text: str) -> str:
    return "".join(
        piece if re.fullmatch(r"&#?\w+;", piece) else content(piece) for piece in re.split(r"(&#?\w+;)", text)
    )
