"""Convert messages and tools to a canonical form, for comparison and storage."""

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
    """Parse a number; 1.0 and 1 are the same, because JavaScript clients write 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_DECODER = json.JSONDecoder(parse_float=_number)
_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
_SORTED_ASCII = json.JSONEncoder(sort_keys=True)
_QUOTED = json.JSONEncoder(ensure_ascii=False).encode


def canonical_tools(tools: Sequence[ToolSpec] | None) -> str:
    """Return the JSON text of the offered tools with sorted keys, "" if there are none.

    :raises RequestError: the tools cannot be written as JSON, for example because a number is too
        long.
    """
    try:
        return _SORTED_ASCII.encode(tools) if tools else ""
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools: not serializable as JSON: {error}", param="tools") from error


def tools_digest(tools: str) -> bytes:
    """Return [32] the SHA-256 of the canonical text of tools."""
    return hashlib.sha256(tools.encode()).digest()


def message_digest(previous: bytes, message: ChatMessage) -> bytes:
    """Return [32] the SHA-256 of a conversation, from that of all messages but the last.

    It depends on roles, texts, ids, names and the meaning of arguments. It does not depend on
    reasoning, which templates drop, on white space around an answer's text, which frameworks strip,
    or on the name of an answer's author, which frameworks add.
    """
    answer = message.role == "assistant"
    content = message.content.strip() if answer else message.content
    fields = [message.role, content, message.tool_call_id or ""]
    if message.is_named and not answer:
        fields.append(message.name or "")
    for call in message.tool_calls:
        fields += (call.id, call.name, canonical_arguments(call.arguments))
    # Most fields are empty: skip encoding them.
    encoded = [text.encode("utf-8", "surrogatepass") if text else b"" for text in fields]
    # The lengths make the encoding unique.
    lengths = ",".join([str(len(data)) for data in encoded])
    return hashlib.sha256(b"".join((previous, lengths.encode(), b":", *encoded))).digest()


class ConversationDigests:
    """The digests of all prefixes of the last conversation.

    The next request repeats most of it, so only its new messages are hashed.

    :ivar messages: messages of the last request.
    """

    def __init__(self) -> None:
        self._tools = b""
        self._digests: list[bytes] = []
        self.messages: Sequence[ChatMessage] = ()

    @property
    def request(self) -> tuple[bytes, Sequence[ChatMessage]]:
        """The digest of the tools, and the messages, of the last request."""
        return self._tools, self.messages

    def of(self, tools: bytes, messages: Sequence[ChatMessage]) -> list[bytes]:
        """Return [len(messages)] the `message_digest` up to each message.

        :param tools: `tools_digest` of the offered tools.
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
    """Return arguments with sorted keys and uniform spaces, or `text` itself if it is not JSON."""
    # Every turn sends all arguments again, so the results for short ones are cached.
    return _canonical_short(text) if len(text) <= _SHORT_ARGUMENTS else _canonical(text)


def _canonical(text: str) -> str:
    try:
        return _SORTED.encode(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return text


_SHORT_ARGUMENTS = 256
_canonical_short = lru_cache(maxsize=4096)(_canonical)


def message_text(message: ChatMessage) -> MessageText:
    """Return the stored form of a message."""
    return MessageText(
        message.role,
        _storable(message.content),
        _storable(message.reasoning or ""),
        _storable(_calls_text(message.tool_calls)) if message.tool_calls else "",
        _storable(message.tool_call_id or ""),
        _storable(message.name or ""),
    )


def kept_message(text: MessageText) -> ChatMessage:
    """Return the message of a stored form, with its arguments in canonical form."""
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
    """Return the JSON text of tool calls; arguments are objects, or strings if they are not."""
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
    """Return `text` with lone surrogates, which stores cannot encode as UTF-8, replaced."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()
