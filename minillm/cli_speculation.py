"""The options of the command ``minillm generate`` that say how it speculates, and what is told of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from minillm.comparison import Comparison, check_comparable
from minillm.core.sampling import SamplingParams
from minillm.speculation import METHODS, VERIFICATIONS, Speculate

if TYPE_CHECKING:
    from minillm.llm import LLM


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation: several tokens a step, with the output that one at a time gives")
    group.add_argument(
        "--speculate", choices=METHODS, help="how tokens are drafted: from the text, by a smaller model, by heads"
    )
    group.add_argument("--draft-tokens", type=int, metavar="N", help="most tokens drafted for a request in a step")
    group.add_argument(
        "--draft-model", metavar="NAME", help="with the vocabulary of --model (default: the one bundled with it)"
    )
    group.add_argument(
        "--verification",
        choices=VERIFICATIONS,
        default="draw",
        help="draw: the very ids of a run without; rejection: their distribution, more accepted (%(default)s)",
    )
    group.add_argument("--adaptive-draft", action="store_true", help="draft less where little is accepted")
    group.add_argument(
        "--compare",
        action="store_true",
        help="run it again without --speculate; say whether the ids are equal or where they part, and by what margin",
    )


def speculate_options(options: argparse.Namespace, params: SamplingParams) -> Speculate | None:
    """What was asked for. ``ValueError`` names what is wrong with it."""
    if options.speculate is None:
        given = {
            "--draft-tokens": options.draft_tokens is not None,
            "--draft-model": options.draft_model is not None,
            "--verification": options.verification != "draw",
            "--adaptive-draft": options.adaptive_draft,
            "--compare": options.compare,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise ValueError(f"{name} without --speculate: add --speculate {'|'.join(METHODS)}, or leave it out")
        return None
    if params.beam_width:
        raise ValueError("nothing is drafted for a beam search: leave out --speculate or --beam-width")
    if options.compare:
        check_comparable(params, options.verification)
    return Speculate(
        options.speculate,
        options.draft_tokens,
        options.draft_model,
        options.verification,
        options.adaptive_draft,
    )


def measured(llm: LLM) -> dict[str, Any]:
    """What became of the whole run; a single output has the same of its own."""
    run = llm.engine.metrics()
    return {
        "speculate": None if llm.speculate is None else llm.speculate.method,
        "preemptions": run.preemptions,
        "tokens_per_step": run.tokens_per_step,
        "acceptance_rate": run.acceptance_rate,
    }


def comparison_line(found: Comparison, e2e_s: float | None) -> str:
    """What ``--compare`` found, for a reader; ``e2e_s`` is the time with speculation."""
    if found.equal:
        line = "without --speculate: equal ids"
    else:
        margin = "not known" if found.margin is None else f"{found.margin:.3g} nats"
        line = (
            f"without --speculate: other ids from output token {found.position} on, {found.plain_token_id} instead of "
            f"{found.token_id}, margin {margin}"
        )
    if found.plain_e2e_s is not None and e2e_s is not None:
        line += f" · {found.plain_e2e_s * 1e3:.1f} ms, with it {e2e_s * 1e3:.1f} ms"
    return line
