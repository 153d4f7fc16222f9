"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import NotFoundError, RequestError, UnsupportedError
from ajet_core.server.dialects.bodies import (
    Body,
    Neutral,
    Temperature,
    Tokens,
    TopK,
    TopP,
    ignored_names,
    json_text,
    read_object,
    refuse_unsupported,
    request_error,
    wrong,
)
from ajet_core.server.dialects.chat_messages import content_text
from ajet_core.server.dialects.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_core.server.dialects.exchange import Session
from ajet_core.server.dialects.request import ModelRequest
from ajet_core.server.dialects.tools import Tools, function_spec
from ajet_core.server.rendering.messages import ChatMessage, Role, ToolCall, as_json

ID_PREFIX = "resp_"
INSTRUCTED = "instructed"
"""In a call's metadata: its first message is the request's instructions, which are not carried over."""

_MAX_ITEMS = 16384
_MAX_TOOLS = 1024
_REFUSED: Neutral = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "prompt": (),
}
_INSTEAD = {"conversation": "use previous_response_id, or send all items"}
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class ResponsesBody(Body):
    """The keys with a meaning here."""

    input: str | Annotated[list[Any], Field(max_length=_MAX_ITEMS)] | None = None
    instructions: str | None = None
    model: str | None = None
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=128)] | None = None
    include: list[Any] | None = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None


def read_responses_request(body: bytes, session: Session) -> tuple[ModelRequest, ResponsesBody]:
    """Read a request body.

    :raises NotFoundError: there is no such previous response in the episode.
    :raises UnsupportedError: it asks for something that cannot be honoured; `param` names it.
    :raises RequestError: it is no JSON object of the right form; `param` names the field.
    """
    try:
        parsed = ResponsesBody.model_validate(read_object(body))
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, _INSTEAD)
    choice = _choice(parsed)
    tools = _tools(parsed.tools or ())
    messages = [*_instructions(parsed), *_before(parsed, session)]
    messages += _Items(session).read(parsed.input)
    if not messages:
        raise RequestError("input: expected a text or a list of items", param="input")
    request = ModelRequest(
        id_prefix=ID_PREFIX,
        messages=tuple(messages),
        tools=tools.chosen(choice),
        tool_choice=choice or FREE_CHOICE,
        answer_format=_answer_format(parsed.text or {}),
        max_tokens=parsed.max_output_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
        stream=bool(parsed.stream),
        include_usage=True,
        logprobs="message.output_text.logprobs" in (parsed.include or ()),
        top_logprobs=parsed.top_logprobs or 0,
        metadata={INSTRUCTED: "1"} if parsed.instructions else {},
        ignored=(*ignored_names(extra, _REFUSED), *tools.unknown),
    )
    return request, parsed


def _answer_format(text: dict[str, Any]) -> AnswerFormat | None:
    form = text.get("format")
    kind = form.get("type", "text") if isinstance(form, dict) else "text"
    match kind:
        case "text":
            return None
        case "json_object":
            return AnswerFormat("", "text.format")
        case "json_schema" if isinstance(form, dict) and isinstance(form.get("schema"), dict):
            return AnswerFormat(json_text(form["schema"]), "text.format")
    raise RequestError(
        'text.format: expected a format of type "text", "json_object" or "json_schema", with its schema',
        param="text.format",
    )


def _choice(body: ResponsesBody) -> ToolChoice | None:
    choice, name = body.tool_choice, ""
    if isinstance(choice, dict):
        name = str(choice.get("name") or "")
        choice = choice.get("type")
    if choice == "none":
        return None
    if choice not in (None, "auto", "required", "function"):
        raise UnsupportedError(
            f"tool_choice: {str(choice)[:40]!r} is not supported: functions can be forced, all or one by name",
            param="tool_choice",
        )
    if choice == "function" and not name:
        wrong("tool_choice.name", "a non-empty string")
    single = body.parallel_tool_calls is False
    return ToolChoice(
        forced=choice in ("required", "function"),
        name=name,
        single=single,
        param="parallel_tool_calls" if single and choice in (None, "auto") else "tool_choice",
    )


def _tools(bodies: Sequence[Any]) -> Tools:
    offered, unknown = [], []
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        if isinstance(tool, dict) and tool.get("type") != "function":
            unknown.append(path)
        else:
            offered.append(function_spec(tool, path))
    return Tools(tuple(offered), tuple(unknown))


def _instructions(body: ResponsesBody) -> Iterator[ChatMessage]:
    if body.instructions:
        yield ChatMessage("system", body.instructions)


def _before(body: ResponsesBody, session: Session) -> list[ChatMessage]:
    """The conversation up to the previous response; the instructions it had are not carried over."""
    name = body.previous_response_id
    if not name:
        return []
    known = session.index.conversation(name)
    if known is None:
        raise NotFoundError(
            f"previous_response_id: there is no response {name[:80]!r} in this episode",
            param="previous_response_id",
        )
    call, messages = known
    return messages[1:] if INSTRUCTED in call.metadata else messages


@dataclass(slots=True)
class _Items:
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
