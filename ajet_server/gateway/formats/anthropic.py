"""Anthropic messages: parse the body of ``POST /v1/messages``, and write its JSON and events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import AjetError, ContextLengthError, RequestError, UnsupportedError
from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.bodies import (
    Body,
    Neutral,
    Temperature,
    Tokens,
    TopK,
    TopP,
    ignored_names,
    json_text,
    object_text,
    read_object,
    refuse_unsupported,
    request_error,
    stop_strings,
    unseen,
    unseen_names,
    wrong,
)
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.formats.dialect import Dialect, DialectRequest, StreamWriter, event
from ajet_server.gateway.formats.events import CallDelta, Choice, ChoiceDelta, Delta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.request import ModelRequest, Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall, ToolSpec, as_json

ID_PREFIX = "msg_"
_MAX_MESSAGES = 16384
_MAX_TOOLS = 1024
# Blocks are separate paragraphs.
_BETWEEN_BLOCKS = "\n\n"

_EDITING = "context_management"
_REFUSED: Neutral = {
    "container": (),
    "mcp_servers": ([],),
}
_INSTEAD = {
    "mcp_servers": "call them from the agent, and offer their tools",
}
# The only edit of a conversation that can keep everything, and its settings that do.
_CLEAR_THINKING = "clear_thinking_20251015"
_KEEP_ALL = ("all", {"type": "all"})
# The types of tools that the client runs itself.
_OWN_TOOLS = (None, "custom")
# The types of tools with which the provider would search the deferred tools begin with this.
_PROVIDERS_SEARCH = "tool_search_tool_"
_REFERENCE = "tool_reference"
_READ_IN_RESULTS = ("text", _REFERENCE)
# Some programs drop thinking that is not signed, which would fork the conversation.
_SIGNATURE = "agentjet"


class _MessagesBody(Body):
    messages: Annotated[list[Any], Field(min_length=1, max_length=_MAX_MESSAGES)]
    max_tokens: Tokens | None = None
    model: str | None = None
    system: Any = None
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: Any = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stream: bool | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


def read_messages_request(body: bytes) -> ModelRequest:
    """Read a request body.

    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
    """
    try:
        parsed = _MessagesBody.model_validate(read_object(body))
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, _INSTEAD)
    _refuse_editing(extra.get(_EDITING))
    tools = _tools(parsed.tools or ())
    choice = _choice(parsed.tool_choice or {})
    return ModelRequest(
        id_prefix=ID_PREFIX,
        model=parsed.model or "",
        messages=tuple(_messages(parsed, tools)),
        tools=tools.chosen(choice),
        loaded_tools=_loaded(parsed, tools),
        tool_choice=choice or FREE_CHOICE,
        answer_format=_answer_format(parsed),
        max_tokens=parsed.max_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
        stop=stop_strings(parsed.stop_sequences, "stop_sequences"),
        stream=bool(parsed.stream),
        include_usage=True,
        ignored=(
            *ignored_names(extra, _REFUSED),
            *tools.unknown,
            *_without_effect(parsed),
        ),
    )


def _refuse_editing(settings: Any) -> None:
    """Refuse to edit the conversation; accept settings that keep all of it.

    :raises UnsupportedError: the settings would remove something from the conversation.
    :raises RequestError: the settings are malformed.
    """
    if settings is None:
        return
    if not isinstance(settings, dict):
        wrong(_EDITING, "an object")
    edits = settings.get("edits")
    if not isinstance(edits, list | None):
        wrong(f"{_EDITING}.edits", "a list of edits")
    for i, edit in enumerate(edits or ()):
        if not (isinstance(edit, dict) and edit.get("type") == _CLEAR_THINKING):
            kind = edit.get("type") if isinstance(edit, dict) else edit
            raise UnsupportedError(
                f"{_EDITING}.edits[{i}]: {str(kind)[:40]!r} is not supported: this server does not "
                "edit conversations; leave the edit out and shorten the messages in the agent",
                param=_EDITING,
            )
        if edit.get("keep") not in _KEEP_ALL:
            raise UnsupportedError(
                f'{_EDITING}.edits[{i}].keep: only "all" is supported: this server does not '
                "remove thinking from conversations",
                param=_EDITING,
            )


def _without_effect(body: _MessagesBody) -> Iterator[str]:
    """Yield the names of fields that are recognised but have no effect."""
    # Templates cannot express `is_error`: the tool's result has to state the failure.
    results = list(_results(body))
    if any(block.get("is_error") for block in results):
        yield "tool_result.is_error"
    contents = (block.get("content") for block in results)
    yield from unseen_names("tool_result", contents, _READ_IN_RESULTS)
    for name, value in (body.output_config or {}).items():
        if name != "format" and value is not None:
            yield from ignored_names({f"output_config.{name}": value}, {})


def _results(body: _MessagesBody) -> Iterator[dict[str, Any]]:
    """Yield the results of tools, of a body whose messages were read."""
    for message in body.messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                yield block


def _loaded(body: _MessagesBody, tools: Tools) -> tuple[ToolSpec, ...]:
    """Return the deferred tools that results of tools refer to."""
    if not tools.deferred:
        return ()
    contents = (result.get("content") for result in _results(body))
    named = {
        block.get("tool_name")
        for content in contents
        for block in (content if isinstance(content, list) else ())
        if block.get("type") == _REFERENCE
    }
    return tuple(spec for name, spec in tools.deferred.items() if name in named)


def _choice(choice: dict[str, Any]) -> ToolChoice | None:
    kind = choice.get("type", "auto")
    if kind == "none":
        return None
    if kind not in ("auto", "any", "tool"):
        wrong("tool_choice.type", '"none", "auto", "any" or "tool"')
    name = choice.get("name") if kind == "tool" else ""
    if not isinstance(name, str) or (kind == "tool" and not name):
        wrong("tool_choice.name", "a non-empty string")
    single = choice.get("disable_parallel_tool_use") is True
    names = (name,) if name else ()
    return ToolChoice(forced=kind != "auto", names=names, single=single or bool(name))


def _answer_format(body: _MessagesBody) -> AnswerFormat | None:
    """Return the format from ``output_format`` or its successor, ``output_config.format``."""
    config = body.output_config or {}
    form, param = body.output_format, "output_format"
    if form is None:
        form, param = config.get("format"), "output_config.format"
    if form is None:
        return None
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict) or form.get("type") != "json_schema":
        raise UnsupportedError(f'{param}: only "json_schema" is supported', param=param)
    return AnswerFormat(json_text(schema), param)


def _tools(bodies: Sequence[Any]) -> Tools:
    """Read the tools.

    Those with ``defer_loading`` are shown where a result refers to them, which a search of the
    client's does. Without one, nothing would, so that they are offered as the others.
    """
    offered: list[ToolSpec] = []
    unknown: list[str] = []
    deferred: dict[str, ToolSpec] = {}
    kinds = [str(tool.get("type")) for tool in bodies if isinstance(tool, dict)]
    defers = not any(kind.startswith(_PROVIDERS_SEARCH) for kind in kinds) and not all(
        isinstance(tool, dict) and tool.get("defer_loading") is True for tool in bodies
    )
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        if isinstance(tool, dict) and tool.get("type") not in _OWN_TOOLS:
            unknown.append(path)
            continue
        spec = function_spec(tool, path, "input_schema")
        if defers and tool.get("defer_loading") is True:
            deferred[spec["function"]["name"]] = spec
        else:
            offered.append(spec)
    return Tools(tuple(offered), tuple(unknown), deferred)


def _messages(body: _MessagesBody, tools: Tools) -> Iterator[ChatMessage]:
    if body.system is not None and (system := _text(body.system, "system")):
        yield ChatMessage("system", system)
    for i, message in enumerate(body.messages):
        path = f"messages[{i}]"
        if not isinstance(message, dict):
            wrong(path, "an object with role and content")
        match message.get("role"):
            case "user":
                yield from _user(message.get("content"), f"{path}.content", tools)
            case "assistant":
                if i == len(body.messages) - 1:
                    raise UnsupportedError(
                        f"{path}.role: prefilled answers are not supported: end with a user "
                        "message",
                        param=f"{path}.role",
                    )
                yield _assistant(message.get("content"), f"{path}.content")
            case "system":
                yield ChatMessage("system", _text(message.get("content"), f"{path}.content"))
            case _:
                wrong(f"{path}.role", '"user" or "assistant"')


def _user(content: Any, path: str, tools: Tools) -> Iterator[ChatMessage]:
    """Yield the messages of a user's turn: its texts and tool results, in order."""
    texts: list[str] = []

    def said() -> Iterator[ChatMessage]:
        if texts:
            yield ChatMessage("user", _BETWEEN_BLOCKS.join(texts))
            texts.clear()

    blocks = _blocks(content, path)
    for i, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            yield from said()
            where = f"{path}[{i}]"
            call_id = block.get("tool_use_id")
            if not (isinstance(call_id, str) and call_id):
                wrong(f"{where}.tool_use_id", "the id of the tool use that this block answers")
            result = _result_text(block.get("content"), f"{where}.content", tools)
            yield ChatMessage("tool", result, tool_call_id=call_id)
        else:
            texts.append(_block_text(block, f"{path}[{i}]"))
    if not blocks:
        texts.append("")
    yield from said()


def _assistant(content: Any, path: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(_blocks(content, path)):
        where = f"{path}[{i}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "redacted_thinking":
                continue
            case "tool_use":
                calls.append(_tool_use(block, where))
            case _:
                texts.append(_block_text(block, where))
    return ChatMessage(
        "assistant",
        _BETWEEN_BLOCKS.join(text for text in texts if text),
        tuple(calls),
        reasoning="\n".join(thoughts) or None,
    )


def _tool_use(block: dict[str, Any], path: str) -> ToolCall:
    name, arguments = block.get("name"), block.get("input")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    if not isinstance(arguments, dict | None):
        wrong(f"{path}.input", "an object")
    try:
        text = as_json(arguments or {})
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{path}.input: not serializable as JSON: {error}", param=f"{path}.input"
        ) from error
    return ToolCall(str(block.get("id") or ""), name, text)


def _blocks(content: Any, path: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not (isinstance(content, list) and all(isinstance(block, dict) for block in content)):
        wrong(path, "a string or a list of content blocks")
    return content


def _text(content: Any, path: str) -> str:
    return _BETWEEN_BLOCKS.join(
        _block_text(block, f"{path}[{i}]") for i, block in enumerate(_blocks(content, path))
    )


def _result_text(content: Any, path: str, tools: Tools) -> str:
    """Return the text of a tool's result, with the definitions of the tools that it refers to."""
    texts: list[str] = []
    for i, block in enumerate(_blocks(content, path)):
        kind = block.get("type")
        if kind == _REFERENCE:
            texts.append(_definition(block, f"{path}[{i}]", tools))
        elif kind == "text" or not isinstance(kind, str):
            texts.append(_block_text(block, f"{path}[{i}]"))
        else:
            texts.append(unseen(kind))
    return _BETWEEN_BLOCKS.join(texts)


def _definition(block: dict[str, Any], path: str, tools: Tools) -> str:
    name = block.get("tool_name")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.tool_name", "a non-empty string")
    if (spec := tools.deferred.get(name)) is not None:
        return f"Tool {name} can now be called:\n{json_text(spec)}"
    offered = any(tool["function"]["name"] == name for tool in tools.offered)
    return f"Tool {name} {'can be called.' if offered else 'is not available.'}"


def _block_text(block: dict[str, Any], path: str) -> str:
    kind = block.get("type")
    if kind != "text":
        raise UnsupportedError(
            f"{path}.type: content of type {str(kind)[:40]!r} is not supported: this server "
            "reads text only",
            param=f"{path}.type",
        )
    text = block.get("text")
    if not isinstance(text, str):
        wrong(f"{path}.text", "a string")
    return text


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicDialect(Dialect):
    """``POST /v1/messages``."""

    summary = "Anthropic messages"
    heartbeat = event(b'{"type":"ping"}', "ping")

    def read(self, body: bytes, session: Session) -> MessagesRequest:  # noqa: ARG002
        """Parse a body."""
        return MessagesRequest(read_messages_request(body))

    def read_to_count(self, body: bytes) -> ModelRequest:
        """Parse a body whose tokens are to be counted."""
        return read_messages_request(body)

    def error(self, error: AjetError) -> dict[str, Any]:
        """Return Anthropic's error object, with agentjet's error type as `code`."""
        kind = _KINDS.get(error.status)
        if kind is None:
            kind = "invalid_request_error" if error.status < 500 else "api_error"
        content = {"type": kind, "message": _message_of(error), "code": error.type}
        return {"type": "error", "error": content}

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """Return an ``error`` event, on which the SDK raises."""
        return event(object_text(self.error(error)), "error")


@dataclass(frozen=True, slots=True)
class MessagesRequest(DialectRequest):
    """A request for a message."""

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return a ``message``."""
        (choice,) = choices
        message = _message(exchange, _answer_blocks(choice.answer)) | _end(choice)
        message["usage"] = _usage(exchange, len(choice.generation.sampled_ids))
        return object_text(message)

    def writer(self, exchange: Exchange) -> MessageWriter:
        """Return a writer of the events from ``message_start`` to ``message_stop``."""
        return MessageWriter(exchange)


@dataclass(slots=True)
class _Blocks:
    """The content blocks of a stream, of which at most one is open."""

    _index: int = -1
    _kind: str = ""
    _open: bool = field(default=False)

    def grown(self, delta: Delta) -> Iterator[bytes]:
        """Yield the events of a delta."""
        if delta.reasoning:
            yield from self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._more({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self.text()
            yield self._more({"type": "text_delta", "text": delta.content})
        for call in delta.calls:
            yield from self._called(call)

    def text(self) -> Iterator[bytes]:
        """Open a text block, unless one is open."""
        return self._in("text", {"type": "text", "text": ""})

    def closed(self) -> Iterator[bytes]:
        """Yield the end of the open block."""
        if self._open:
            if self._kind == "thinking":
                yield self._more({"type": "signature_delta", "signature": _SIGNATURE})
            yield _sse("content_block_stop", index=self._index)
        self._open = False

    def _called(self, call: CallDelta) -> Iterator[bytes]:
        if call.id is not None:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": {},
            }
            yield from self._in(f"tool_use {call.index}", block)
        if call.arguments:
            yield self._more({"type": "input_json_delta", "partial_json": call.arguments})

    def _in(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open and self._kind == kind:
            return
        yield from self.closed()
        self._index += 1
        self._kind, self._open = kind, True
        yield _sse("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: dict[str, Any]) -> bytes:
        return _sse("content_block_delta", index=self._index, delta=delta)


@dataclass(slots=True)
class MessageWriter(StreamWriter):
    """Writes the events of a message."""

    exchange: Exchange
    _answer_blocks: _Blocks = field(default_factory=_Blocks)

    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield the events of the message's start, blocks and end."""
        exchange, blocks = self.exchange, self._answer_blocks
        match happened:
            case Started():
                message = _message(exchange, []) | {"usage": _usage(exchange, 1)}
                message |= {"stop_reason": None, "stop_sequence": None}
                yield _sse("message_start", message=message)
            case ChoiceDelta(_, delta):
                yield from blocks.grown(delta)
            case Choice(_, generation, answer, _, rest):
                yield from blocks.grown(rest)
                if not (answer.content or answer.tool_calls):
                    yield from blocks.text()
                yield from blocks.closed()
                usage = {"output_tokens": len(generation.sampled_ids)}
                yield _sse("message_delta", delta=_end(happened), usage=usage)
                yield _sse("message_stop")

    def heartbeat(self) -> Iterator[bytes]:
        """Yield an event ``ping``."""
        yield AnthropicDialect.heartbeat


def _message_of(error: AjetError) -> str:
    """Return the error's message.

    For a prompt that is too long it has Anthropic's wording, by which programs decide to compact
    their conversation.
    """
    if not isinstance(error, ContextLengthError) or error.prompt_tokens is None:
        return error.message
    # An answer needs at least one token.
    most = (error.max_context or 0) - 1
    return f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum"


def _sse(name: str, **content: Any) -> bytes:
    return event(object_text({"type": name, **content}), name)


def _message(exchange: Exchange, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": exchange.completion_id,
        "type": "message",
        "role": "assistant",
        "model": exchange.model_name,
        "content": content,
    }


def _answer_blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        thinking = {"thinking": answer.reasoning, "signature": _SIGNATURE}
        blocks.append({"type": "thinking", **thinking})
    if answer.content or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.content})
    blocks += [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)}
        for c in answer.tool_calls
    ]
    return blocks


def _end(choice: Choice) -> dict[str, Any]:
    stopped = choice.generation.stopped_by
    reason = "stop_sequence" if stopped else _REASONS[choice.finish_reason]
    return {"stop_reason": reason, "stop_sequence": stopped}


def _usage(exchange: Exchange, sampled: int) -> dict[str, int]:
    return {
        "input_tokens": len(exchange.prompt.ids),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": sampled,
    }
