"""What one request's prompt is made of: a snapshot of what is known, and the work on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

from ajet_core.errors import RequestError
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.gateway.rendering.call_metadata import REASONED
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec
from ajet_server.gateway.rendering.placing import Span
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.rendering.suffix import extended_by_proof

_How = Literal["bridge", "suffix", "render"]

# A message costs time of its own, about as much as these many characters.
_MESSAGE_CHARACTERS = 64
# Words on one line: every template writes them as they are, whatever it does to white space and marks.
_WORDS = re.compile(r"[A-Za-z0-9]+(?: [A-Za-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens for one request, and where they came from.

    :param ids: [P] token ids.
    :param base: the call whose first `shared` tokens (prompt and sampled) `ids` begins with.
    :param placed: the last messages, at least those that do not stand in the shared tokens as a whole.
    :param standing: how many of `placed` do stand there.
    :param how: "bridge" and "suffix" extend all tokens of `base`, the first by the renderer's own rules, the
        second by proof; "render" renders all messages, whatever they share with `base`.
    :param tools: canonical JSON text of the tools.
    :param digest: hash of tools and messages.
    :param reasoned: whether the tokens hold reasoning.
    :param echoed: fields of the answer before that the agent wrote in other bytes; see `ECHO_FIELDS`.
    :param written: [N] what the template writes for the conversation as it is recorded, if that is known.
    :param state: of the session when the base was chosen.
    """

    ids: list[int]
    base: Call | None
    shared: int
    placed: tuple[PlacedMessage, ...]
    standing: int
    how: _How
    tools: str
    digest: bytes
    reasoned: bool
    echoed: tuple[str, ...] = ()
    written: list[int] | None = field(default=None, compare=False)
    state: int = field(default=0, compare=False)

    @property
    def messages(self) -> tuple[PlacedMessage, ...]:
        """The messages that do not stand in the shared tokens as a whole, in order."""
        return self.placed[self.standing :]

    @property
    def parent_call_id(self) -> str | None:
        """The call that the prompt was made to go on from."""
        return None if self.how == "render" or self.base is None else self.base.call_id


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt's tokens, before it is known with which call it shares the most.

    :param placed: all messages of a rendered prompt, the new ones of an extended one.
    """

    ids: list[int]
    placed: tuple[PlacedMessage, ...]
    how: _How
    reasoned: bool
    written: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's messages, and the call they go on from. Nothing in it changes, so any thread may work on it.

    :param tools_text: canonical JSON text of the tools.
    :param digest: hash of tools and messages.
    :param parent: the call to extend, None if none is known.
    :param answered: how many messages the conversation up to the parent's answer has.
    :param previous: [P] the parent's prompt.
    :param written: [N] what the template writes for it, where that is at hand.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec] | None
    tools_text: str
    digest: bytes
    parent: Call | None = None
    answered: int = 0
    previous: list[int] = field(default_factory=list)
    written: list[int] | None = None

    def write(self, renderer: ChatRenderer) -> Written:
        """The tokens of the prompt.

        :raises RequestError: the model's template cannot express the messages.
        """
        return self._bridged(renderer) or self._unbridged(renderer)

    def write_or_defer(
        self, renderer: ChatRenderer, characters: int
    ) -> Written | Callable[[], Written]:
        """The tokens of the prompt if no more than these many characters are to be rendered, else the work.

        :raises RequestError: the model's template cannot express the messages.
        """
        if self.parent is not None:
            if _size(self.messages[self.answered :]) > characters:
                return partial(self.write, renderer)
            if (bridged := self._bridged(renderer)) is not None:
                return bridged
        if _size(self.messages) > characters:
            return partial(self._unbridged, renderer)
        return self._unbridged(renderer)

    def _bridged(self, renderer: ChatRenderer) -> Written | None:
        parent = self.parent
        if parent is None:
            return None
        reasoned = REASONED in parent.metadata
        new = named_results(self.messages, start=self.answered)
        found = renderer.bridge(
            self.previous, parent.sampled_ids, new, self.tools, reasoned=reasoned, led=self._led
        )
        if found is None:
            return None
        return Written(found.ids, _placed(new, found.spans), "bridge", reasoned)

    def _unbridged(self, renderer: ChatRenderer) -> Written:
        parent = self.parent
        if parent is not None:
            reasoned = REASONED in parent.metadata
            new = named_results(self.messages, start=self.answered)
            if not (reasoned and renderer.drops_reasoning(new, led=self._led)):
                found = extended_by_proof(
                    renderer, parent, self.previous, new, self.tools, asked=self.written
                )
                if found is not None:
                    placed = _placed(new, found.spans)
                    return Written(found.ids, placed, "suffix", reasoned, found.written)
        return self._rendered(renderer)

    @property
    def _led(self) -> bool:
        return self.messages[0].role == "system"

    def _rendered(self, renderer: ChatRenderer) -> Written:
        asks = all(message.role in ("system", "user") for message in self.messages)
        if asks and _size(self.messages) <= renderer.quick_characters:
            return _first_prompt(renderer, tuple(self.messages), json.dumps(self.tools))
        return _rendering(renderer, self.messages, self.tools)


@lru_cache(maxsize=128)
def _first_prompt(renderer: ChatRenderer, messages: tuple[ChatMessage, ...], tools: str) -> Written:
    """A prompt without answers: the rollouts of a task begin with the same one. It is shared, and never changed.

    :param tools: JSON text, as they were sent: templates write them in the order of their keys.
    """
    return _rendering(renderer, messages, json.loads(tools))


def _rendering(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None
) -> Written:
    named = named_results(messages)
    rendering = renderer.render(named, tools)
    placed = _placed(named, renderer.spans(rendering, named, tools))
    reasoned = _keeps_reasoning(renderer, named, tools, rendering.ids)
    return Written(rendering.ids, placed, "render", reasoned, rendering.ids)


def _size(messages: Sequence[ChatMessage]) -> int:
    """Characters that are to be rendered, or so."""
    size = len(messages) * _MESSAGE_CHARACTERS
    for message in messages:
        size += len(message.content) + len(message.reasoning or "")
        size += sum(len(call.arguments) for call in message.tool_calls)
    return size


def _placed(messages: Sequence[ChatMessage], spans: Sequence[Span]) -> tuple[PlacedMessage, ...]:
    return tuple(
        PlacedMessage(start, end, message_text(message))
        for (start, end), message in zip(spans, messages, strict=True)
    )


def _keeps_reasoning(
    renderer: ChatRenderer,
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] | None,
    ids: list[int],
) -> bool:
    """Whether a rendered prompt holds reasoning: clients send it back, but templates may leave it out.

    Words of it that stand nowhere else tell. Only where there are none, or others say them too, the
    conversation is rendered again without the reasoning.
    """
    if not any(message.role == "assistant" and holds_reasoning(message) for message in messages):
        return False
    bare: list[ChatMessage] = []
    thoughts: list[str] = []
    for message in messages:
        if message.role == "assistant" and holds_reasoning(message):
            inline, _, content = message.content.rpartition("</think>")
            thought = f"{message.reasoning or ''}\n{inline.rpartition('<think>')[2]}"
            thoughts.append(max(_WORDS.findall(thought), key=len, default=""))
            message = replace(message, reasoning=None, content=content.lstrip("\n"))  # noqa: PLW2901
        bare.append(message)
    text = renderer.decode(ids)
    seen = [words for words in thoughts if words in text]
    if not seen:
        return False
    others = [message.content for message in bare]
    others += [call.arguments for message in bare for call in message.tool_calls]
    others.append(str(tools or ""))
    said = "\n".join(others)
    if any(words and words not in said for words in seen):
        return True
    try:
        return renderer.render(bare, tools).ids != ids
    except RequestError:
        return True


def holds_reasoning(message: ChatMessage) -> bool:
    """Whether an assistant message came with reasoning, in a field or within its text."""
    return bool(message.reasoning) or "</think>" in message.content


def named_results(messages: Sequence[ChatMessage], start: int = 0) -> list[ChatMessage]:
    """`messages` from `start` on, tool messages with the name of the function they answer.

    Some templates print that name, but clients send it only in the assistant message.
    """
    names: dict[str | None, str] = {}
    named: list[ChatMessage] = []
    for position, message in enumerate(messages):
        if message.tool_calls:
            names.update((call.id, call.name) for call in message.tool_calls)
        if position < start:
            continue
        if message.role == "tool" and not message.name and message.tool_call_id in names:
            name = names[message.tool_call_id]
            message = ChatMessage(  # noqa: PLW2901 - the named copy takes the message's place
                "tool", message.content, tool_call_id=message.tool_call_id, name=name
            )
        named.append(message)
    return named


def known_texts(parent: Call) -> list[MessageText]:
    """What a conversation says up to and including a call's answer."""
    said = [message.text for message in parent.conversation()]
    return said if parent.answer is None else [*said, parent.answer]
