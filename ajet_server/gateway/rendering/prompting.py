"""Make the prompt's tokens from a request's messages.

A prompt is made in three steps. `ConversationIndex.plan` looks up the conversation among the
episode's calls and returns a `PromptPlan`. `PromptPlan.render` makes a `Prompt`, on any thread.
`ConversationIndex.commit` writes the sampled call, so that later prompts can continue from it.
`Continuation` is the reason why a prompt continues from an earlier call or starts over.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from typing import overload

from ajet_core.errors import RequestError
from ajet_core.timeline import Call, PlacedMessage
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.drift import echo_fields
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec
from ajet_server.gateway.rendering.placing import Span
from ajet_server.gateway.rendering.renderer import ChatRenderer, Extension
from ajet_server.gateway.rendering.suffix import extended_by_proof
from ajet_server.store.call_metadata import ARGUMENTS_DIGEST, REASONED

# Rendering a message takes a fixed time, about as much as this many characters.
_MESSAGE_CHARACTERS = 64
# Words on one line, which every template writes unchanged, whatever it does to white space and
# punctuation.
_WORDS = re.compile(r"[A-Za-z0-9]+(?: [A-Za-z0-9]+)*")


class Continuation(StrEnum):
    """Why a prompt continues from an earlier call, or starts over."""

    BRIDGED = "bridged"
    """Continues: the renderer's own rules extend the call's tokens."""

    PROVEN = "proven"
    """Continues: two renderings prove how to extend the call's tokens."""

    FIRST_CALL = "first_call"
    """Starts over: the episode has no call yet from which a prompt could continue."""

    NEW_CONVERSATION = "new_conversation"
    """Starts over: the messages contain no answer of the model."""

    NO_NEW_MESSAGE = "no_new_message"
    """Starts over: the last message is an answer, so there is nothing to render after it."""

    TOOLS_CHANGED = "tools_changed"
    """Starts over: the messages begin with those of the previous request, which had other tools."""

    HISTORY_CHANGED = "history_changed"
    """Starts over: no call of the episode on disk has these messages up to the last answer."""

    REASONING_DROPPED = "reasoning_dropped"
    """Starts over: the template drops reasoning from the history when these messages follow."""

    TEMPLATE_DIFFERS = "template_differs"
    """Starts over: it cannot be proven that the template would keep the call's tokens."""

    NO_MESSAGES = "no_messages"
    """Starts over: the request has a text or token ids instead of messages."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of one request's prompt, and their origin.

    :param ids: [P] token ids.
    :param placed: all messages; if the prompt continues from a call, only those after its answer.
    :param continuation: why the prompt continues from a call or starts over.
    :param parent: the call from which the prompt continues: `ids` begins with all its tokens.
    :param tools: canonical JSON text of the tools.
    :param digest: hash of tools and messages.
    :param reasoned: whether the tokens contain reasoning.
    :param echoed: fields of the previous answer that the agent sent back in other bytes; see
        `ECHO_FIELDS`.
    :param written: [N] the template's rendering of the conversation as it is recorded, if known.
    :param state: state of the `ConversationIndex` when the prompt was planned.
    """

    ids: array[int]
    placed: tuple[PlacedMessage, ...]
    continuation: Continuation
    parent: Call | None
    tools: str
    digest: bytes
    reasoned: bool
    echoed: tuple[str, ...] = ()
    written: array[int] | None = field(default=None, compare=False)
    state: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """Everything needed to render a prompt. It is immutable, so any thread can render it.

    :param tools_text: canonical JSON text of the tools.
    :param digest: hash of tools and messages.
    :param restart: why the prompt starts over if there is no `parent`, or if its tokens cannot be
        extended.
    :param state: state of the `ConversationIndex`.
    :param parent: the call from which the prompt should continue.
    :param answered: number of messages up to and including the parent's answer.
    :param parent_ids: [P] the parent's prompt.
    :param parent_written: [N] `Prompt.written` of the parent's prompt.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec] | None
    tools_text: str
    digest: bytes
    restart: Continuation
    state: int
    parent: Call | None = None
    answered: int = 0
    parent_ids: array[int] = field(default_factory=partial(array, "I"))
    parent_written: array[int] | None = None

    @overload
    def render(self, renderer: ChatRenderer) -> Prompt: ...
    @overload
    def render(self, renderer: ChatRenderer, at_most: int) -> Prompt | None: ...
    def render(self, renderer: ChatRenderer, at_most: int | None = None) -> Prompt | None:
        """Return the prompt, continued from the parent if possible.

        :param at_most: about how many characters may be rendered; None does not limit them.
        :return: None if more have to be rendered.
        :raises RequestError: the model's template cannot express the messages.
        """
        limit = math.inf if at_most is None else at_most
        parent = self.parent
        if parent is not None and characters(self.messages[self.answered :]) <= limit:
            prompt = self._bridged(parent, renderer)
            if prompt is not None:
                return prompt
        return self._unbridged(renderer) if characters(self.messages) <= limit else None

    def _bridged(self, parent: Call, renderer: ChatRenderer) -> Prompt | None:
        """Return the prompt by the renderer's own rules, which render only the new messages.

        :return: None if the rules do not cover this conversation.
        """
        new = named_results(self.messages, start=self.answered)
        reasoned = REASONED in parent.metadata
        extension = renderer.bridge(
            self.parent_ids, parent.sampled_ids, new, self.tools, reasoned=reasoned, led=self._led
        )
        if extension is None:
            return None
        return self._continued(parent, new, extension, Continuation.BRIDGED)

    def _unbridged(self, renderer: ChatRenderer) -> Prompt:
        """Return the prompt by rendering all messages."""
        parent, restart = self.parent, self.restart
        if parent is not None:
            new = named_results(self.messages, start=self.answered)
            reasoned = REASONED in parent.metadata
            if reasoned and renderer.drops_reasoning(new, led=self._led):
                restart = Continuation.REASONING_DROPPED
            else:
                extension = extended_by_proof(
                    renderer, parent, self.parent_ids, new, self.tools, asked=self.parent_written
                )
                if extension is not None:
                    return self._continued(parent, new, extension, Continuation.PROVEN)
        ids, placed, reasoned = self._rendered(renderer)
        return Prompt(
            ids,
            placed,
            restart,
            None,
            self.tools_text,
            self.digest,
            reasoned,
            written=ids,
            state=self.state,
        )

    @property
    def _led(self) -> bool:
        return self.messages[0].role == "system"

    def _continued(
        self, parent: Call, new: list[ChatMessage], extension: Extension, how: Continuation
    ) -> Prompt:
        return Prompt(
            extension.ids,
            _placed(new, extension.spans),
            how,
            parent,
            self.tools_text,
            self.digest,
            REASONED in parent.metadata,
            _echoed(parent, self.messages[self.answered - 1]),
            extension.written,
            self.state,
        )

    def _rendered(self, renderer: ChatRenderer) -> _Rendered:
        asks = all(message.role in ("system", "user") for message in self.messages)
        if asks and characters(self.messages) <= renderer.quick_characters:
            return _first_prompt(renderer, tuple(self.messages), json.dumps(self.tools))
        return _rendering(renderer, self.messages, self.tools)


def raw_prompt(ids: Sequence[int]) -> Prompt:
    """Return the prompt of a text or of tokens that are continued without a template."""
    whole = array("I", ids)
    digest = hashlib.sha256(b"raw" + whole.tobytes()).digest()
    return Prompt(whole, (), Continuation.NO_MESSAGES, None, "", digest, reasoned=False)


_Rendered = tuple["array[int]", tuple[PlacedMessage, ...], bool]
"""The tokens of messages, the placed messages, and whether the tokens contain reasoning."""


@lru_cache(maxsize=128)
def _first_prompt(
    renderer: ChatRenderer, messages: tuple[ChatMessage, ...], tools: str
) -> _Rendered:
    """Render messages without answers, cached because all rollouts of a task begin with them.

    Callers share the result and must not change it.

    :param tools: JSON text with the keys in the order in which they were sent, in which templates
        write them.
    """
    return _rendering(renderer, messages, json.loads(tools))


def _rendering(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None
) -> _Rendered:
    named = named_results(messages)
    rendering = renderer.render(named, tools)
    placed = _placed(named, renderer.spans(rendering, named, tools))
    return rendering.ids, placed, _keeps_reasoning(renderer, named, tools, rendering.ids)


def characters(messages: Sequence[ChatMessage]) -> int:
    """Return about how many characters have to be rendered, with a fixed number per message."""
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
    ids: array[int],
) -> bool:
    """Whether a rendered prompt contains reasoning.

    Clients send reasoning back, but templates may leave it out. Words of the reasoning that occur
    nowhere else in the messages decide. Only if there are none, the conversation is rendered again
    without the reasoning.
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
    """Whether an assistant message has reasoning, in a field or in its text."""
    return bool(message.reasoning) or "</think>" in message.content


def named_results(messages: Sequence[ChatMessage], start: int = 0) -> list[ChatMessage]:
    """Return `messages` from `start` on, tool messages with the name of the function they answer.

    Some templates write that name, but clients send it only in the assistant message.
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


def _echoed(parent: Call, echo: ChatMessage) -> tuple[str, ...]:
    if parent.answer is None:
        return ()
    return tuple(echo_fields(parent.answer, parent.metadata.get(ARGUMENTS_DIGEST), echo))
