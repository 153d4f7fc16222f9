"""The gateway's representation of a conversation, independent of the dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

ToolSpec = dict[str, Any]
"""A tool as clients declare it, ``{"type": "function", "function": {...}}``.

Templates get it verbatim.
"""


_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an assistant message.

    :param arguments: JSON text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message.

    :param tool_call_id: for a tool message, the id of the call that it answers.
    :param name: for a tool message, the function that was called; for others, the author's name.
    :param reasoning: for an assistant message, its reasoning, if the client sent it back.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the message states its author's name."""
        return self.name is not None and self.role != "tool"


def without_names(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return `messages` without the names of their authors."""
    return tuple(
        replace(message, name=None) if message.is_named else message for message in messages
    )


def renderer_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return `messages` in the form that the `renderers` library takes."""
    return [_renderer_message(message) for message in messages]


def _renderer_message(message: ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _arguments(text: str) -> dict[str, Any] | str:
    """Return arguments as an object: templates iterate over them, and some refuse JSON text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def as_json(value: Any) -> str:
    """Return `value` as JSON text that any client can read, without NaN and lone surrogates.

    :raises ValueError: the value cannot be represented.
    """
    text = _READABLE.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text
