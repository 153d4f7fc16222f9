"""The items of a request for a response: what was said, thought, called and answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import NotFoundError, RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.formats.chat_messages import content_text
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.messages import ChatMessage, Role, ToolCall, as_json

ID_PREFIX = "resp_"

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(slots=True)
class Items:
    """Items of an input, gathered to messages: what an assistant thought, said and called is one message."""

    session: Session
    _messages: list[ChatMessage] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)

    def read(self, given: str | list[Any] | None) -> list[ChatMessage]:
        """The messages of an input."""
        if isinstance(given, str):
            return [ChatMessage("user", given)]
        for i, item in enumerate(given or ()):
            path = f"input[{i}]"
            if not isinstance(item, dict):
                wrong(path, "an item")
            self._item(item, path)
        self._answered()
        return self._messages

    def _item(self, item: dict[str, Any], path: str) -> None:
        kind = item.get("type", "message")
        match kind:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._thoughts += _thoughts(item)
            case "function_call":
                self._calls.append(_call(item, path))
            case "function_call_output":
                self._answered()
                self._messages.append(_output(item, path))
            case "item_reference":
                self._refer(item, path)
            case _:
                raise UnsupportedError(
                    f"{path}.type: items of type {str(kind)[:40]!r} are not supported",
                    param=f"{path}.type",
                )

    def _message(self, item: dict[str, Any], path: str) -> None:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            wrong(f"{path}.role", f"one of {', '.join(_ROLES)}")
        text = content_text(item.get("content"), f"{path}.content")
        if role == "assistant":
            self._texts.append(text)
        else:
            self._answered()
            self._messages.append(ChatMessage(role, text))

    def _refer(self, item: dict[str, Any], path: str) -> None:
        """Items of an answer are named after it: its whole message takes the place of the first one."""
        name = str(item.get("id"))
        _, _, stem = name.partition("_")
        known = self.session.index.conversation(f"{ID_PREFIX}{stem.partition('-')[0]}")
        if known is None:
            raise NotFoundError(
                f"{path}.id: there is no item {name[:80]!r} in this episode", param=f"{path}.id"
            )
        answer = known[1][-1]
        if not self._messages or self._messages[-1] != answer:
            self._answered()
            self._messages.append(answer)

    def _answered(self) -> None:
        """What was gathered of the assistant is a message."""
        if not (self._thoughts or self._texts or self._calls):
            return
        self._messages.append(
            ChatMessage(
                "assistant",
                "\n".join(text for text in self._texts if text),
                tuple(self._calls),
                reasoning="\n".join(self._thoughts) or None,
            )
        )
        self._thoughts, self._texts, self._calls = [], [], []


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Reasoning as the model wrote it; a summary is of another model."""
    parts = item.get("content")
    return [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def _call(item: dict[str, Any], path: str) -> ToolCall:
    name, arguments = item.get("name"), item.get("arguments")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    if isinstance(arguments, dict):
        try:
            arguments = as_json(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{path}.arguments: cannot be written as JSON: {error}", param=f"{path}.arguments"
            ) from error
    if not isinstance(arguments, str | None):
        wrong(f"{path}.arguments", "JSON text")
    return ToolCall(str(item.get("call_id") or ""), name, arguments or "{}")


def _output(item: dict[str, Any], path: str) -> ChatMessage:
    call_id = item.get("call_id")
    if not (isinstance(call_id, str) and call_id):
        wrong(f"{path}.call_id", "the id of the call that this is the output of")
    return ChatMessage(
        "tool", content_text(item.get("output"), f"{path}.output"), tool_call_id=call_id
    )
