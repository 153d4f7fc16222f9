"""Messages and tools in one form, however clients write them: to compare and to keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from ajet_core.errors import RequestError
from ajet_core.timeline import MessageText
from ajet_server.gateway.rendering.messages import ChatMessage, Role, ToolCall, ToolSpec


def _number(text: str) -> float | int:
    """JavaScript clients write 1.0 as 1, so both are the same number."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_DECODER = json.JSONDecoder(parse_float=_number)
_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
_SORTED_ASCII = json.JSONEncoder(sort_keys=True)
_QUOTED = json.JSONEncoder(ensure_ascii=False).encode


def canonical_tools(tools: Sequence[ToolSpec] | None) -> str:
    """JSON text of the tools that are offered, whatever the order of their keys; "" if none are.

    :raises RequestError: a number in them is too long to be written.
    """
    try:
        return _SORTED_ASCII.encode(tools) if tools else ""
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools: cannot be written as JSON: {error}", param="tools") from error


def tools_digest(tools: str) -> bytes:
    """[32] sha256 of the canonical text of tools."""
    return hashlib.sha256(tools.encode()).digest()


def message_digest(previous: bytes, message: ChatMessage) -> bytes:
    """[32] sha256 of a conversation, from that of all messages but the last.

    Roles, texts, ids and names count, and arguments by what they mean. Reasoning does not, which templates
    drop, nor white space around an answer's text, which frameworks strip, nor who gave an answer: frameworks
    add the agent's name to what the model said without one.
    """
    answer = message.role == "assistant"
    content = message.content.strip() if answer else message.content
    fields = [message.role, content, message.tool_call_id or ""]
    if message.is_named and not answer:
        fields.append(message.name or "")
    for call in message.tool_calls:
        fields += (call.id, call.name, canonical_arguments(call.arguments))
    # Every turn digests all messages again.
    encoded = [text.encode("utf-8", "surrogatepass") if text else b"" for text in fields]
    # Lengths first, so that no two conversations are written alike.
    lengths = ",".join([str(len(data)) for data in encoded])
    return hashlib.sha256(b"".join((previous, lengths.encode(), b":", *encoded))).digest()


class ConversationDigests:
    """Digests of all beginnings of a conversation. The next request repeats it, and only what is new is digested.

    :ivar messages: of the last one.
    """

    def __init__(self) -> None:
        self._tools = b""
        self._digests: list[bytes] = []
        self.messages: Sequence[ChatMessage] = ()

    @property
    def request(self) -> tuple[bytes, Sequence[ChatMessage]]:
        """Digest of the tools and messages of the last one."""
        return self._tools, self.messages

    def of(self, tools: bytes, messages: Sequence[ChatMessage]) -> list[bytes]:
        """[len(messages)] `message_digest` up to each message.

        :param tools: `tools_digest` of what is offered.
        """
        known = self.messages if tools == self._tools else ()
        same, most = 0, min(len(known), len(messages))
        while same < most and (known[same] is messages[same] or known[same] == messages[same]):
            same += 1
        digests = self._digests[:same]
        digest = digests[-1] if same else tools
        for message in messages[same:]:
            digest = message_digest(digest, message)
            digests.append(digest)
        self._tools, self._digests, self.messages = tools, digests, tuple(messages)
        return digests


def canonical_arguments(text: str) -> str:
    """The arguments of a call with sorted keys and uniform spaces; `text` itself if it is no JSON."""
    # Every turn sends all arguments again; short ones are not worth parsing again.
    return _canonical_short(text) if len(text) <= _SHORT_ARGUMENTS else _canonical(text)


def _canonical(text: str) -> str:
    try:
        return _SORTED.encode(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return text


_SHORT_ARGUMENTS = 256
_canonical_short = lru_cache(maxsize=4096)(_canonical)


def message_text(message: ChatMessage) -> MessageText:
    """What is kept of a message."""
    return MessageText(
        message.role,
        _storable(message.content),
        _storable(message.reasoning or ""),
        _storable(_calls_text(message.tool_calls)) if message.tool_calls else "",
        _storable(message.tool_call_id or ""),
        _storable(message.name or ""),
    )


def kept_message(text: MessageText) -> ChatMessage:
    """The message that `message_text` kept, its arguments in canonical form."""
    calls: list[Any] = json.loads(text.tool_calls) if text.tool_calls else []
    return ChatMessage(
        cast("Role", text.role),
        text.content,
        tuple(ToolCall(call["id"], call["name"], _arguments(call["arguments"])) for call in calls),
        text.tool_call_id or None,
        text.name or None,
        text.reasoning or None,
    )


def _calls_text(calls: Sequence[ToolCall]) -> str:
    """JSON text of tool calls: an object each, its arguments an object too, or text if they are none."""
    written = []
    for call in calls:
        arguments = canonical_arguments(call.arguments)
        if not _is_object(arguments):
            arguments = _QUOTED(arguments)
        written.append(
            f'{{"arguments": {arguments}, "id": {_QUOTED(call.id)}, "name": {_QUOTED(call.name)}}}'
        )
    return f"[{', '.join(written)}]"


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else _SORTED.encode(value)


def _storable(text: str) -> str:
    """`text` as UTF-8 can hold it: JSON may spell half a character, which no store can take."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()
