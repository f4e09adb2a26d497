"""Splits the Markdown of a page into tokens whose raw texts, joined, are the page again.

Every later step (numbers, glossary, twin, HTML) works on these tokens, so all of them agree on what is
code, mathematics, a link, a mark or plain prose. Only what the handbook uses is known: this is no
Markdown parser, and whatever it does not know stays prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "fence", "code", "math", "math_block", "computed", "cited", "assumed", "link", "url", "html"]


@dataclass(frozen=True)
class Token:
    """A piece of a page.

    ``text`` is what a reader sees of it (a mark's or a link's text, the content of code or mathematics),
    ``argument`` what belongs to it: a fence's info string, a formula, keys, an address.
    ``heading`` is the level of the heading in which it stands, 0 elsewhere.
    """

    kind: Kind
    raw: str
    line: int
    text: str = ""
    argument: str = ""
    heading: int = 0
    indent: str = ""


_MARKS: Mapping[str, Kind] = {"=": "computed", "@": "cited", "~": "assumed"}
_FENCE_OPEN = re.compile(r"^(?P<indent>[ \t]*)(?P<marker>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_HEADING = re.compile(r"^(#{1,6})[ \t]+\S")
_MATH_OPEN = re.compile(r"^[ \t]*\$\$")

# Alternatives in order of precedence: what is inside code or mathematics is neither link nor mark.
_INLINE = re.compile(
    r"""
      (?P<escape>\\[\\`*_{}\[\]()\#+\-.!$|~<>])
    | (?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)
    | \$(?P<math>[^\s$][^$]*?(?<![\s\\])|[^\s$])\$(?![0-9])
    | \[(?P<marked>[^\[\]]+)\]\{(?P<sign>[=@~])\s*(?P<argument>[^{}]*?)\s*\}
    | (?P<image>!?)\[(?P<label>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<address>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)
        (?:\s+"[^"]*")?\)
    | <(?P<auto>https?://[^>\s]+)>
    | (?P<comment><!--.*?-->)
    | (?P<tag></?[a-zA-Z][^<>]*>)
    | (?P<url>https?://[^\s<>)\]]+[^\s<>)\].,;:!?'"])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(body: str, first_line: int = 1) -> list[Token]:
    """All of ``body`` as tokens. ``first_line`` is the line of the file on which ``body`` starts."""
    found: list[Token] = []
    for kind, raw, line, indent in _blocks(body, first_line):
        if kind == "fence":
            first, *inside = raw.rstrip("\n").split("\n")
            opening = first.strip()
            if inside and not inside[-1].strip().strip(opening[0]):
                inside.pop()
            content = "\n".join(piece.removeprefix(indent) for piece in inside)
            found.append(Token("fence", raw, line, content, opening.lstrip("`~").strip(), indent=indent))
        elif kind == "math_block":
            content = raw.strip().removeprefix("$$").removesuffix("$$").strip()
            found.append(Token("math_block", raw, line, content, indent=indent))
        else:
            level = len(indent) if kind == "heading" else 0
            found.extend(_paragraphs(raw, line, level))
    return found


def _blocks(body: str, first_line: int) -> Iterator[tuple[str, str, int, str]]:
    """Cuts at fences, display mathematics and headings: (kind, raw, line, indent or the heading's signs)."""
    lines = body.splitlines(keepends=True)
    prose: list[str] = []
    start = at = 0

    def flush() -> Iterator[tuple[str, str, int, str]]:
        if prose:
            yield "prose", "".join(prose), first_line + start, ""
            prose.clear()

    while at < len(lines):
        line = lines[at]
        fence = _FENCE_OPEN.match(line.rstrip("\r\n"))
        heading = _HEADING.match(line)
        if fence:
            end = _fence_end(lines, at, fence.group("marker"))
            yield from flush()
            yield "fence", "".join(lines[at:end]), first_line + at, fence.group("indent")
        elif _MATH_OPEN.match(line) and (end := _math_end(lines, at)):
            yield from flush()
            yield (
                "math_block",
                "".join(lines[at:end]),
                first_line + at,
                line[: len(line) - len(line.lstrip())],
            )
        elif heading:
            end = at + 1
            yield from flush()
            yield "heading", line, first_line + at, heading.group(1)
        else:
            if not prose:
                start = at
            prose.append(line)
            at += 1
            continue
        at = end
    yield from flush()


def _fence_end(lines: list[str], at: int, marker: str) -> int:
    """The line after the closing fence; an unclosed fence runs to the end, as in every Markdown."""
    for i in range(at + 1, len(lines)):
        stripped = lines[i].strip()
        if stripped.startswith(marker) and not stripped.strip(marker[0]):
            return i + 1
    return len(lines)


def _math_end(lines: list[str], at: int) -> int:
    """The line after the closing ``$$``, 0 where a blank line or the end comes first."""
    if re.match(r"^[ \t]*\$\$[^$]+\$\$[ \t]*$", lines[at].rstrip("\r\n")):
        return at + 1
    for i in range(at + 1, len(lines)):
        if lines[i].rstrip().endswith("$$"):
            return i + 1
        if not lines[i].strip():
            return 0
    return 0


def _paragraphs(raw: str, line: int, heading: int) -> Iterator[Token]:
    """Inline tokens, paragraph by paragraph: no code, mathematics or mark reaches over a blank line."""
    for paragraph in re.split(r"(?<=\n)(?=[ \t]*\n)", raw):
        yield from _inline(paragraph, line, heading)
        line += paragraph.count("\n")


def _inline(raw: str, line: int, heading: int) -> Iterator[Token]:
    text_from = 0
    for match in _INLINE.finditer(raw):
        token = _inline_token(match, line + raw.count("\n", 0, match.start()), heading)
        if token is None:
            continue
        if match.start() > text_from:
            yield _text(raw, text_from, match.start(), line, heading)
        yield token
        text_from = match.end()
    if text_from < len(raw):
        yield _text(raw, text_from, len(raw), line, heading)


def _text(raw: str, start: int, end: int, line: int, heading: int) -> Token:
    piece = raw[start:end]
    return Token("text", piece, line + raw.count("\n", 0, start), piece, heading=heading)


def _inline_token(match: re.Match[str], line: int, heading: int) -> Token | None:
    """The token of a match, None for an escaped character (which stays part of the prose)."""
    raw = match.group()
    if match.group("escape"):
        return None
    if (code := match.group("code")) is not None:
        return Token("code", raw, line, code.strip(), heading=heading)
    if (mathematics := match.group("math")) is not None:
        return Token("math", raw, line, mathematics, heading=heading)
    if (marked := match.group("marked")) is not None:
        kind = _MARKS[match.group("sign")]
        return Token(kind, raw, line, _one_line(marked), _one_line(match.group("argument")), heading)
    if match.group("label") is not None:
        return Token("link", raw, line, match.group("label"), match.group("address"), heading)
    if address := (match.group("auto") or match.group("url")):
        return Token("url", raw, line, address, address, heading)
    return Token("html", raw, line, heading=heading)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def join(pieces: Iterable[Token]) -> str:
    """The page again: the raw texts of its tokens."""
    return "".join(token.raw for token in pieces)
