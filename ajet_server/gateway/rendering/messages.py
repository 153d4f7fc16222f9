"""A conversation as the gateway sees it, whatever dialect it came in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

ToolSpec = dict[str, Any]
"""A tool as clients declare it, ``{"type": "function", "function": {...}}``; models read it verbatim."""


_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant message asks for.

    :param arguments: JSON text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message.

    :param tool_call_id: of a tool message: which call it answers.
    :param name: of a tool message: the function that was called; of others: who says it.
    :param reasoning: of an assistant message: its reasoning, if the client gave it back.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether it says whose it is."""
        return self.name is not None and self.role != "tool"


def without_names(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """`messages` as a model sees them that is not shown whose they are."""
    return tuple(
        replace(message, name=None) if message.is_named else message for message in messages
    )


def renderer_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """`messages` in the form that the `renderers` library takes."""
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
    """Arguments as an object: chat templates iterate over them, and not all take JSON text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def as_json(value: Any) -> str:
    """`value` as JSON text that any client can read: no NaN, no lone surrogates.

    :raises ValueError: it has no such form.
    """
    text = _READABLE.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text
