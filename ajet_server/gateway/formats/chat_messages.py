"""The messages of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.rendering.messages import ChatMessage, Role, ToolCall, as_json

# The models know no role "developer"; it is what OpenAI now calls the system's.
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MAX_TOOL_CALLS = 1024
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class FunctionBody(BaseModel):
    """The function of a tool call."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: Any = None


class ToolCallBody(BaseModel):
    """A tool call in an assistant message; what clients add of their own is passed over."""

    model_config = ConfigDict(extra="ignore")

    function: FunctionBody
    id: str | None = None
    type: str | None = None


class MessageBody(BaseModel):
    """A message as clients send it; keys of their own are passed over."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: Any = None
    tool_calls: Annotated[list[ToolCallBody], Field(max_length=_MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class _Messages(BaseModel):
    messages: list[MessageBody]


def chat_messages(bodies: Sequence[Any], known: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages of a request.

    :param known: those of an earlier request. Clients send a conversation again with every turn, and what they sent
        before was understood before.
    :raises pydantic.ValidationError: some have not the right form.
    :raises UnsupportedError: a role or content that cannot be given to the model.
    :raises RequestError: something of the wrong type.
    """
    found: list[ChatMessage | None] = [
        message if _says_plainly(body, message) else None
        for body, message in zip(bodies, known, strict=False)
    ]
    found += [None] * (len(bodies) - len(found))
    new = [body for body, message in zip(bodies, found, strict=True) if message is None]
    try:
        parsed = iter(_Messages(messages=new).messages)
    except ValidationError:
        # The error is to say where in the request it is.
        _Messages(messages=list(bodies))
        raise
    return tuple(
        chat_message(next(parsed), f"messages[{i}]") if message is None else message
        for i, message in enumerate(found)
    )


def _says_plainly(body: Any, message: ChatMessage) -> bool:
    """Whether a body is this message and has no more keys than it needs; False also where that is not plain to see."""
    return (
        isinstance(body, dict)
        and len(body) == (2 if message.tool_call_id is None else 3)
        and body.get("content") == message.content
        and body.get("role") == message.role
        and body.get("tool_call_id") == message.tool_call_id
        and not (message.tool_calls or message.reasoning or message.name)
    )


def chat_message(body: MessageBody, path: str) -> ChatMessage:
    """The message that `body` means.

    :param path: where it stands in the request, for errors.
    :raises UnsupportedError: a role or content that cannot be given to the model.
    :raises RequestError: something of the wrong type.
    """
    role = _ROLES.get(body.role)
    if role is None:
        if body.role == "function":
            raise UnsupportedError(
                f'{path}.role: "function" messages are not supported: send role "tool" with a '
                "tool_call_id",
                param=f"{path}.role",
            )
        raise RequestError(
            f"{path}.role: expected one of {', '.join(_ROLES)}, not {body.role[:40]!r}",
            param=f"{path}.role",
        )
    content = body.content
    if not isinstance(content, str):
        content = content_text(content, f"{path}.content")
    name = body.name or None
    if role == "assistant":
        calls = tuple(
            _tool_call(call, f"{path}.tool_calls[{i}]")
            for i, call in enumerate(body.tool_calls or ())
        )
        return ChatMessage(
            role, content, calls, name=name, reasoning=body.reasoning_content or None
        )
    if role == "tool":
        if not body.tool_call_id:
            wrong(f"{path}.tool_call_id", "the id of the tool call that this message answers")
        return ChatMessage(role, content, tool_call_id=body.tool_call_id, name=name)
    return ChatMessage(role, content, name=name)


def content_text(content: Any, path: str) -> str:
    """The text of a message's content: a string, parts, or nothing.

    :raises UnsupportedError: it has parts that are no text.
    :raises RequestError: it has not the right form.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        wrong(path, "a string, null or a list of content parts")
    texts: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        where = f"{path}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            wrong(where, 'a content part with a "type"')
        if kind not in _TEXT_PARTS:
            raise UnsupportedError(
                f"{where}.type: content of type {kind[:40]!r} is not supported, this server reads text "
                "only",
                param=f"{where}.type",
            )
        key = _TEXT_PARTS[kind]
        text = part.get(key)
        if not isinstance(text, str):
            wrong(f"{where}.{key}", "a string")
        texts.append(text)
    return "".join(texts)


def _tool_call(body: ToolCallBody, path: str) -> ToolCall:
    if body.type not in (None, "function"):
        raise UnsupportedError(
            f'{path}.type: only "function" tool calls are supported', param=f"{path}.type"
        )
    arguments = body.function.arguments
    if arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str):
        if not isinstance(arguments, dict):
            wrong(f"{path}.function.arguments", "a JSON string or object")
        try:
            arguments = as_json(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{path}.function.arguments: cannot be written as JSON: {error}",
                param=f"{path}.function.arguments",
            ) from error
    return ToolCall(body.id or "", body.function.name, arguments)
