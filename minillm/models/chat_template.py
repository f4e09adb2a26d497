"""Messages to the text, and to the token ids, that a chat model was trained on, by the template in its files.

A template is a program by a stranger: it runs in the bounded sandbox of `minillm.models.template_sandbox`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from minillm.loaders.files import LoadError, read_json
from minillm.models.template_sandbox import ChatTemplateError, Sandbox, check_size
from minillm.models.tokenizer import Tokenizer

# Code points that Unicode promises never to assign; one that is in no message marks user text.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class ChatTemplate:
    """A Jinja chat template as Hugging Face models carry it.

    Args:
        source: the template's text.
        bos_token, eos_token: what the template sees under these names.
        clock: the time that `strftime_now` shows.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._environment = Sandbox()
        self._environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: clock().strftime(str(form)[:200]),
        }
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = self._environment.bounded(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise ChatTemplateError("the chat template nests too deeply") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to where the answer begins.

        Args:
            messages: objects with the strings `role` and `content`, oldest first.

        Raises:
            ChatTemplateError: a message is malformed, or the template refused it, failed or ran too long.
        """
        _check(messages)
        self._environment.begin()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._constants,
            ):
                parts.append(part)
                size += len(part)
                check_size(size)
        except ChatTemplateError:
            raise
        except SecurityError as error:
            raise ChatTemplateError(f"the chat template tried what the sandbox forbids: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the chat template calls itself without end") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ChatTemplateError(f"the chat template failed on {len(messages)} messages: {error}") from error
        return "".join(parts)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = False,
        skip_characters: int = 0,
    ) -> list[int]:
        """Token ids of `render(messages)`, where only the template's own text makes special tokens.

        A user who writes `<|im_end|>` gets these ten characters, not the end of the turn.
        `skip_characters` of the rendered text are left out: those whose ids the caller has.
        """
        special = {tokenizer.token_bytes(id).decode(): id for id in _special_ids(tokenizer)}
        pattern = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        mark = _unused_mark(messages)
        marked = [
            {key: _mark(value, pattern, mark) if isinstance(value, str) else value for key, value in message.items()}
            for message in messages
        ]
        text = self.render(marked, add_generation_prompt=add_generation_prompt)
        ids: list[int] = []
        at = 0  # in the text without marks
        for part in _parts(text, pattern):
            is_special = part in special
            plain = part if is_special else part.replace(mark, "")
            kept = plain[max(0, skip_characters - at) :]
            if is_special and kept == plain:
                ids.append(special[part])
            elif kept:
                ids.extend(tokenizer.encode(kept))
            at += len(plain)
        return ids


def load_chat_template(source: Path | Mapping[str, Any], tokenizer: Tokenizer | None = None) -> ChatTemplate:
    """The template of a Hugging Face directory, or of a GGUF file's metadata.

    In a directory it is `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`, where
    several with names have one called `default`.

    Raises:
        ChatTemplateError: the model has none, so it was not trained to chat.
    """
    if isinstance(source, Mapping):
        text, where = source.get("tokenizer.chat_template"), "the GGUF metadata"
    else:
        where = str(source)
        alone, config = source / "chat_template.jinja", source / "tokenizer_config.json"
        text = read_json(config).get("chat_template") if config.exists() else None
        if isinstance(text, list):
            named = [entry for entry in text if isinstance(entry, Mapping)]
            text = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
        if alone.exists():
            text = _read_text(alone)
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where} has no chat template: the model takes plain prompts only")
    bos = eos = ""
    if tokenizer is not None:
        if tokenizer.bos_id is not None:
            bos = tokenizer.token_bytes(tokenizer.bos_id).decode(errors="replace")
        if tokenizer.eos_ids:
            eos = tokenizer.token_bytes(min(tokenizer.eos_ids)).decode(errors="replace")
    return ChatTemplate(text, bos_token=bos, eos_token=eos)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: cannot be read ({error}): fetch the file again") from error


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each message has the strings `role` and `content`."""
    if not messages:
        raise ChatTemplateError("there are no messages: give at least one with role 'user'")
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ChatTemplateError(f"message {at} is of type {type(message).__name__}, an object was expected")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ChatTemplateError(
                    f"message {at}: {key!r} is {message.get(key)!r:.80}, a string was expected"
                    if key in message
                    else f"message {at} has no {key!r}: each message has the strings 'role' and 'content'"
                )


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(f"the chat template refused the messages: {message}")


def _special_ids(tokenizer: Tokenizer) -> Iterable[int]:
    return filter(tokenizer.is_special, range(tokenizer.vocab_size))


def _unused_mark(messages: Sequence[Mapping[str, Any]]) -> str:
    used = set().union(*(value for message in messages for value in message.values() if isinstance(value, str)))
    for mark in _MARKS:
        if mark not in used:
            return mark
    raise ChatTemplateError("the messages contain all of U+FDD0 to U+FDEF, which are no characters: remove them")


def _mark(text: str, pattern: re.Pattern[str], mark: str) -> str:
    """Break up every special token's text with `mark` between its characters."""
    return pattern.sub(lambda match: mark.join(match.group()), text)


def _parts(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """`text` cut before and after each match."""
    at = 0
    for match in pattern.finditer(text):
        yield text[at : match.start()]
        yield match.group()
        at = match.end()
    yield text[at:]
