"""The options of the command line that say how tokens are chosen, and the parameters that they make."""

from __future__ import annotations

import argparse

from minillm.core.sampling import SamplingParams
from minillm.process import utf8

TEMPERATURE, SEED = 0.7, 0  # of a command that says nothing else; a beam search has neither


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """How one output is sampled and when it ends."""
    default = SamplingParams()
    group = parser.add_argument_group("the next token, in the order in which they act")
    group.add_argument(
        "--repetition-penalty", type=float, default=default.repetition_penalty, metavar="R", help="0.01 to 100; 1: none"
    )
    group.add_argument("--presence-penalty", type=float, default=default.presence_penalty, metavar="P", help="-2 to 2")
    group.add_argument(
        "--frequency-penalty", type=float, default=default.frequency_penalty, metavar="F", help="-2 to 2"
    )
    group.add_argument(
        *("--logit-bias",),
        type=_bias,
        action="append",
        default=[],
        metavar="ID=VALUE",
        help="-100 to 100, added to a logit",
    )
    group.add_argument("--bad-word", action="append", default=[], metavar="TEXT", help="never write this")
    group.add_argument("--temperature", type=float, help=f"0 is greedy ({TEMPERATURE})")
    group.add_argument("--top-k", type=int, default=default.top_k, metavar="K", help="0 keeps all (%(default)s)")
    group.add_argument("--top-p", type=float, default=default.top_p, metavar="P")
    group.add_argument("--min-p", type=float, default=default.min_p, metavar="P")
    group.add_argument("--typical-p", type=float, default=default.typical_p, metavar="P")
    draws = parser.add_argument_group("its draw")
    draws.add_argument("--seed", type=int, help=f"({SEED})")
    draws.add_argument("--logprobs", type=int, metavar="K", help="log-probabilities, and of the K most likely tokens")
    ends = parser.add_argument_group("end of the output")
    ends.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help="longest output (%(default)s)")
    ends.add_argument("--min-tokens", type=int, default=default.min_tokens, metavar="N", help="no end before so many")
    ends.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this; may be given again")
    ends.add_argument(
        "--stop-token-id", type=int, action="append", default=[], metavar="ID", help="end with this token"
    )
    ends.add_argument("--ignore-eos", action="store_true", help="go on after the model's end of sequence")
    # What only `generate` offers.
    parser.set_defaults(prompt_logprobs=None, n=1, best_of=None, beam_width=None, length_penalty=default.length_penalty)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """How many outputs a prompt gets. Call it after ``add_sampling_options``."""
    group = parser.add_argument_group("several outputs")
    group.add_argument("--n", type=int, default=1, help="outputs of each prompt (%(default)s)")
    group.add_argument("--best-of", type=int, metavar="M", help="sample M and keep the N most likely")
    group.add_argument("--beam-width", type=int, metavar="W", help="search instead of sampling; temperature is 0")
    group.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="A", help="of the search: scores / tokens ** A"
    )
    group.add_argument("--prompt-logprobs", type=int, metavar="K", help="as --logprobs, for the prompt")


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    """The parameters. ``ValueError`` names what is wrong with them."""
    drawn = options.beam_width is None
    return SamplingParams(
        temperature=(TEMPERATURE if drawn else 0.0) if options.temperature is None else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=tuple(options.logit_bias),
        bad_words=tuple(utf8(text, "--bad-word") for text in options.bad_word),
        n=options.n,
        best_of=options.best_of,
        beam_width=options.beam_width,
        length_penalty=options.length_penalty,
        seed=(SEED if drawn else None) if options.seed is None else options.seed,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        stop=tuple(utf8(text, "--stop") for text in options.stop),
        stop_token_ids=tuple(options.stop_token_id),
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
    )


def _bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=VALUE, for example 198=-100") from None
