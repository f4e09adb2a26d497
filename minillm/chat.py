"""A conversation with one model: keeps the ids of what was said, so that each turn extends the last one's prefix."""

from __future__ import annotations

from collections.abc import Generator

from minillm.core.detokenizer import known_ids
from minillm.core.engine import Event
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from minillm.models.chat_template import ChatTemplate


class Conversation:
    """Messages and their token ids.

    A reply is kept as the ids that were sampled. Encoding its text again may give other ids, and then
    the prefix cache would miss from there on.
    """

    def __init__(self, llm: LLM, template: ChatTemplate, system: str = "") -> None:
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._llm = llm
        self._template = template
        self._text = ""  # what `_ids` spells
        self._ids: list[int] = []

    def say(self, text: str, params: SamplingParams) -> Generator[Event, None, None]:
        """Add a message of the user and stream the reply, which is then part of the conversation.

        A reply that is cut off, by the reader or an error, leaves the conversation as it was before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self._template.render(messages, add_generation_prompt=True)
        # What the ids at hand spell is left out; a template that rewrote its past starts anew.
        known = len(self._text) if prompt.startswith(self._text) else 0
        ids = (self._ids if known else []) + self._template.encode(
            messages, self._llm.tokenizer, add_generation_prompt=True, skip_characters=known
        )
        request = yield from self._llm.stream(ids, params)
        self.messages = [*messages, {"role": "assistant", "content": request.text}]
        output = request.output_ids
        while output and self._llm.tokenizer.is_special(output[-1]):
            output.pop()  # the template writes the end of the turn itself
        tokenizer = self._llm.tokenizer
        self._ids, self._text = ids + output, prompt + tokenizer.decode(known_ids(tokenizer, output))
