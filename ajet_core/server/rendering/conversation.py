"""An episode's memory of its calls, so that the next call extends the exact tokens of the last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Self

from ajet_core.errors import RequestError
from ajet_core.server.rendering.messages import ChatMessage, ToolSpec
from ajet_core.server.rendering.renderer import ChatRenderer
from ajet_core.timeline import Call

CONTEXT_KEY = "context_key"
"""Metadata of a call: hex sha256 of the conversation up to and including its answer."""

BARE_CONTEXT_KEY = "context_key_without_text"
"""The same for an answer with text and tool calls, without the text: some clients drop it."""

REASONED = "reasoned"
"""Metadata of a call: "1" if its tokens hold reasoning, which templates may drop at a new question."""


def _number(text: str) -> float | int:
    """JavaScript clients write 1.0 as 1, so both are the same number."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_DECODER = json.JSONDecoder(parse_float=_number)
_SORTED = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens for one request, and where they came from.

    :param ids: [P] token ids.
    :param parent_call_id: the call whose prompt and sampled tokens `ids` begins with; None if none does.
    :param how: "bridge" extends the parent's tokens, "render" renders all messages.
    :param digest: hash of tools and messages.
    :param reasoned: whether the tokens hold reasoning.
    """

    ids: list[int]
    parent_call_id: str | None
    how: Literal["bridge", "render"]
    digest: bytes
    reasoned: bool


@dataclass(frozen=True, slots=True)
class _Node:
    """A call's tokens, as what it added to its parent's: a chain of calls stays linear in memory."""

    call_id: str
    parent: _Node | None
    added: list[int]
    sampled: list[int]
    length: int
    reasoned: bool

    def prompt_ids(self) -> list[int]:
        nodes: list[_Node] = []
        node = self.parent
        while node is not None:
            nodes.append(node)
            node = node.parent
        ids: list[int] = []
        for node in reversed(nodes):
            ids += node.added
            ids += node.sampled
        ids += self.added
        return ids


@dataclass(slots=True)
class ConversationIndex:
    """Finds the call that a conversation goes on from.

    A conversation is the same if roles, texts, tool-call ids, names and parsed arguments and the tools
    are: how a client writes JSON, null for empty text, parts for text or keys of its own do not matter.
    """

    _by_key: dict[str, _Node] = field(default_factory=dict)
    _by_call: dict[str, _Node] = field(default_factory=dict)

    @classmethod
    def restore(cls, calls: Iterable[Call]) -> Self:
        """The index over an episode's stored calls, as it was before a restart."""
        index = cls()
        for call in sorted(calls, key=lambda call: call.index):
            index.add(call)
        return index

    def __len__(self) -> int:
        return len(self._by_call)

    def prompt(
        self,
        renderer: ChatRenderer,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
    ) -> Prompt:
        """The tokens for `messages`, extending a known call's where that is exact.

        Every stored conversation ends with an answer, and no message of ours may be rendered again, so
        only the conversation up to the last assistant message can be the one to extend.

        :raises RequestError: the model's template cannot express the messages.
        """
        digest = tools_digest(tools)
        answered = b""
        position = 0
        for count, message in enumerate(messages, start=1):
            digest = message_digest(digest, message)
            if message.role == "assistant":
                answered, position = digest, count
        parent = self._by_key.get(answered.hex()) if 0 < position < len(messages) else None
        if parent is not None:
            previous = parent.prompt_ids()
            extended = renderer.bridge(
                previous,
                parent.sampled,
                _named_results(messages, start=position),
                tools,
                reasoned=parent.reasoned,
            )
            if extended is not None:
                return Prompt(extended, parent.call_id, "bridge", digest, parent.reasoned)
        reasoned = any(m.role == "assistant" and _holds_reasoning(m) for m in messages)
        ids = renderer.render(_named_results(messages), tools)
        return Prompt(ids, None, "render", digest, reasoned)

    def add(self, call: Call) -> None:
        """Remember a finished call; one without a context key (an aborted one) is passed over."""
        key = call.metadata.get(CONTEXT_KEY)
        if key is None:
            return
        parent = self._by_call.get(call.parent_call_id or "")
        node = _Node(
            call_id=call.call_id,
            parent=parent,
            added=call.prompt_ids[parent.length :] if parent else call.prompt_ids,
            sampled=call.sampled_ids,
            length=len(call.prompt_ids) + len(call.sampled_ids),
            reasoned=REASONED in call.metadata,
        )
        self._by_call[call.call_id] = node
        self._by_key[key] = node
        if (bare := call.metadata.get(BARE_CONTEXT_KEY)) is not None:
            self._by_key[bare] = node


def answer_metadata(prompt: Prompt, answer: ChatMessage) -> dict[str, str]:
    """What a call's metadata says about its place in the conversation.

    :param prompt: what the call was made with.
    :param answer: what the client is told.
    """
    metadata = {CONTEXT_KEY: message_digest(prompt.digest, answer).hex()}
    if answer.content and answer.tool_calls:
        bare = ChatMessage("assistant", tool_calls=answer.tool_calls)
        metadata[BARE_CONTEXT_KEY] = message_digest(prompt.digest, bare).hex()
    if prompt.reasoned or _holds_reasoning(answer):
        metadata[REASONED] = "1"
    return metadata


def tools_digest(tools: Sequence[ToolSpec] | None) -> bytes:
    """[32] sha256 of the tools that are offered, whatever the order of their keys.

    :raises RequestError: a number in them is too long to be written.
    """
    try:
        text = _SORTED.encode(tools) if tools else ""
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools: cannot be written as JSON: {error}", param="tools") from error
    return hashlib.sha256(text.encode()).digest()


def message_digest(previous: bytes, message: ChatMessage) -> bytes:
    """[32] sha256 of a conversation, from that of all messages but the last."""
    fields = [message.role, message.content, message.tool_call_id or ""]
    for call in message.tool_calls:
        fields += (call.id, call.name, _canonical_arguments(call.arguments))
    encoded = [text.encode("utf-8", "surrogatepass") for text in fields]
    # Lengths first, so that no two conversations are written alike.
    lengths = ",".join(str(len(data)) for data in encoded)
    return hashlib.sha256(b"".join((previous, lengths.encode(), b":", *encoded))).digest()


def _canonical_arguments(text: str) -> str:
    # Every turn sends all arguments again; short ones are not worth parsing again.
    return _canonical_short(text) if len(text) <= _SHORT_ARGUMENTS else _canonical(text)


def _canonical(text: str) -> str:
    try:
        return _SORTED.encode(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return text


_SHORT_ARGUMENTS = 256
_canonical_short = lru_cache(maxsize=4096)(_canonical)


def _holds_reasoning(message: ChatMessage) -> bool:
    return bool(message.reasoning) or "</think>" in message.content


def _named_results(messages: Sequence[ChatMessage], start: int = 0) -> list[ChatMessage]:
    """`messages` from `start` on, tool messages with the name of the function they answer.

    Some templates print that name, but clients send it only in the assistant message.
    """
    names: dict[str | None, str] = {}
    named: list[ChatMessage] = []
    for position, message in enumerate(messages):
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
