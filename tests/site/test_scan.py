"""The scanner loses nothing, and tells code, mathematics, links and marks from prose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualizers.site.scan import join, tokens

PIECES = st.sampled_from(
    [
        *(
            "word ",
            " `code`",
            "``a`b``",
            "$x_1$",
            "$$y$$",
            "\n",
            "\n\n",
            "```\n",
            "```figure\n",
            "~~~\n",
            "# ",
            "## head\n",
        ),
        *("[a]", "{= 1}", "{@ k}", "(u.md)", "![i](p.png)", "<https://a.b>", "https://c.d", "<b>", "<!-- ", "-->"),
        *("\\", "$", "|", "- ", "    ", "*"),
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200))
def test_tokens_joined_are_the_page(text: str) -> None:
    assert join(tokens(text)) == text


@given(st.lists(PIECES, max_size=40).map("".join))
def test_lines_count_from_the_first(text: str) -> None:
    line = 7
    for token in tokens(text, 7):
        assert token.line == line
        line += token.raw.count("\n")


def kinds(text: str) -> list[str]:
    return [token.kind for token in tokens(text) if token.raw.strip()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`[a]{= 1}`", ["code"]),
        ("$[a]{= 1}$", ["math"]),
        ("[24 tokens/s]{= a / b}", ["computed"]),
        ("[24 tokens/s]{@ key, other}", ["cited"]),
        ("[text](a.md#b)", ["link"]),
        ("$2.50/h and 2,000 tok/s = $0.347", ["text"]),
        ("costs $5 or $6", ["text"]),
        ("\\$x\\$", ["text"]),
        ("an `unclosed tick\n\nand `another`", ["text", "text", "code"]),
        ("$$\na\n$$", ["math_block"]),
        ("$$a$$", ["math_block"]),
        ("$$\nunclosed", ["text"]),
        ("```figure\nx\n```\n", ["fence"]),
        ("~~~\n```\n~~~\n", ["fence"]),
        ("  ```python\n  a\n  ```\n", ["fence"]),
    ],
)
def test_kinds(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


def test_a_mark_over_two_lines_is_one_line_of_text() -> None:
    (mark,) = (token for token in tokens("[1,613\n  TFLOP/s]{= a\n  + b}") if token.kind == "computed")
    assert (mark.text, mark.argument) == ("1,613 TFLOP/s", "a + b")


def test_the_content_of_a_fence_lacks_fence_and_indent() -> None:
    (fence,) = tokens("  ```figure\n  block-manager\n  a: 3\n  ```\n")
    assert (fence.argument, fence.text, fence.indent) == ("figure", "block-manager\na: 3", "  ")


def test_headings_know_their_level() -> None:
    assert [(t.kind, t.heading) for t in tokens("## A `b`\ntext") if t.raw.strip()] == [
        ("text", 2),
        ("code", 2),
        ("text", 0),
    ]
