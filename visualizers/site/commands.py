"""Commands, options and paths that pages quote: each exists, and runs in the environment that the README sets up."""

from __future__ import annotations

import argparse
import contextlib
import io
import pkgutil
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

from minillm import cli as engine_cli
from minillm import hub
from visualizers.site import blocks
from visualizers.site import cli as site_cli
from visualizers.site.errors import Problem
from visualizers.site.figures import Figures
from visualizers.site.project import Page

BIN = ".venv/bin/"
_OURS = ("minillm", "handbook", "python")
_FREE = ("cd", "git", "source", "pip")  # what a reader's shell has, and is not ours to check
_FILES = ("--json-schema", "--grammar")  # options whose value must be a file of the repository
_FOLDERS = "minillm|visualizers|handbook|tests|benchmarks|tools|notebooks"
_PATH = re.compile(rf"(?:{_FOLDERS})(?:/[\w.-]+)+/?|[\w-]+\.(?:json|gbnf)")
_MODULE = re.compile(r"(?:minillm|visualizers)(?:\.\w+)+")
# A line that speaks of another engine quotes that engine's options.
_OTHERS = re.compile(r"vLLM|SGLang|TensorRT|llama\.cpp|transformers|Dynamo|nvidia-smi")


def check(page: Page, root: Path, figures: Figures) -> Iterator[Problem]:
    """Every finding about what a page quotes to be typed."""
    embedded = [block.name for _, block in blocks.figures(page.tokens)]
    for line, tokens in groupby(page.tokens, key=lambda token: token.line):
        here = list(tokens)
        foreign = bool(_OTHERS.search("".join(token.raw for token in here)))
        for token in here:
            found: list[str] = []
            if token.kind == "fence" and token.argument == "bash":
                for command in token.text.replace("\\\n", " ").split("\n"):
                    found += _command(command, root, figures, fenced=True)
            elif token.kind == "code":
                found += _inline(token.text, root, figures, embedded, foreign=foreign)
            for message in found:
                yield Problem(page.file, line, message)


def _inline(text: str, root: Path, figures: Figures, embedded: Sequence[str], *, foreign: bool) -> list[str]:
    first = text.split(" ")[0]
    if first.removeprefix(BIN) in (*_OURS, "make") and " " in text:
        return _command(text, root, figures, fenced=False)
    if text.startswith("--"):
        return [] if foreign else _options(text, figures, embedded)
    if _PATH.fullmatch(text) and not foreign and not (root / text).exists():
        return [f"`{text}` is no file of the repository"]
    if _MODULE.fullmatch(text):
        try:
            pkgutil.resolve_name(text)
        except (ImportError, AttributeError, ValueError):
            return [f"`{text}` is no module of this project"]
    return []


def _options(text: str, figures: Figures, embedded: Sequence[str]) -> list[str]:
    """Options by themselves: of one of our commands, or an input of a figure of this page."""
    words = text.replace(",", " ").split()
    found = []
    for position, word in enumerate(words):
        if not word.startswith("--"):
            continue
        option, _, value = word.partition("=")
        value = value or next(iter(w for w in words[position + 1 : position + 2] if not w.startswith("--")), "")
        name = option[2:].replace("-", "_")
        takers = [figure for figure in embedded if name in figures.inputs(figure)]
        if takers:
            refused = [figures.refusal(figure, {name: value}) for figure in takers if value]
            found += [f"`{text}`: {refused[0]}"] if refused and all(refused) else []
        elif option not in _known():
            found.append(f"`{text}`: no command and no figure of this page has {option}")
    return found


def _command(line: str, root: Path, figures: Figures, *, fenced: bool) -> list[str]:
    """What is wrong with one command line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return [f"`{line.strip()}`: {error}"]
    if not words or words[0] in _FREE:
        return []
    shown, name = f"`{line.strip()}`", words[0].removeprefix(BIN)
    if name == "make":
        goals = _goals(root)
        return [f"{shown}: the Makefile has no {w}" for w in words[1:] if "=" not in w and goals and w not in goals]
    if name not in _OURS:
        return [f"{shown}: {words[0]} is no command of this project"]
    if fenced and not words[0].startswith(BIN):
        return [f"{shown}: write {BIN}{name}, which runs without an activated environment"]
    if name == "python":
        return [f"{shown}: {message}" for message in _python(words[1:], root, figures)]
    return [f"{shown}: {message}" for message in _parsed(name, words[1:], root, fenced=fenced)]


def _python(words: Sequence[str], root: Path, figures: Figures) -> list[str]:
    if words[:2] == ["-m", "visualizers"]:
        return _figure(words[2:], figures)
    if not words or words[0].startswith("-"):
        return []
    script = root / words[0]
    if not script.is_file():
        return [f"there is no {words[0]}"]
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(script.parent.glob("*.py")))
    return [f"{words[0]} has no option {w}" for w in words[1:] if w.startswith("--") and f'"{w}"' not in text]


def _figure(words: Sequence[str], figures: Figures) -> list[str]:
    if not words or words[0] == "list":
        return []
    given = dict(re.findall(r"--(\w[\w-]*)[ =](\S+)", " ".join(w for w in words[1:] if w != "--json")))
    refusal = figures.refusal(words[0], {name.replace("-", "_"): value for name, value in given.items()})
    return [refusal] if refusal else []


def _parsed(name: str, words: Sequence[str], root: Path, *, fenced: bool) -> list[str]:
    parser = engine_cli.command_line() if name == "minillm" else site_cli.command_line()
    found = [f"{name} has no option {w.partition('=')[0]}" for w in words if _is_unknown(w)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(list(words))
    except ValueError as error:
        if fenced or "required" not in str(error):
            found.append(str(error))
    except SystemExit as ended:
        if ended.code and (fenced or "required" not in said.getvalue()):
            found.append(said.getvalue().strip().split("\n")[-1])
    for option, value in pairwise(words):
        if option in _FILES and not (root / value).is_file():
            found.append(f"there is no file {value} in the repository")
        if option == "--model" and "/" not in value and value not in ("tiny", *hub.WHEELS):
            found.append(f"there is no model {value}: there are tiny, {', '.join(hub.WHEELS)}")
    return found


def _is_unknown(word: str) -> bool:
    """Abbreviations, which argparse takes, count as unknown: they break when an option is added."""
    return word.startswith("--") and word.partition("=")[0] not in _known()


@cache
def _known() -> frozenset[str]:
    """Every option of our two commands."""
    waiting = [engine_cli.command_line(), site_cli.command_line()]
    found: set[str] = {"--json"}
    while waiting:
        for action in waiting.pop()._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
    return frozenset(found)


def _goals(root: Path) -> frozenset[str]:
    file = root / "Makefile"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return frozenset(re.findall(r"^([\w-]+):", text, re.MULTILINE))
