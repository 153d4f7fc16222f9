"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import NotFoundError, RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
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
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.formats.responses_items import ID_PREFIX, Items
from ajet_server.gateway.formats.tools import Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage

INSTRUCTED = "instructed"
"""In a call's metadata: its first message is the request's instructions, which are not carried over."""

LOGPROBS = "message.output_text.logprobs"
"""What has to be included for answers to have logprobs."""

_MAX_ITEMS = 16384
_MAX_TOOLS = 1024
_REFUSED: Neutral = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "prompt": (),
}
_INSTEAD = {"conversation": "use previous_response_id, or send all items"}


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
    messages += Items(session).read(parsed.input)
    if not messages:
        raise RequestError("input: expected a text or a list of items", param="input")
    logprobs = LOGPROBS in (parsed.include or ())
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
        logprobs=logprobs,
        top_logprobs=parsed.top_logprobs or 0 if logprobs else 0,
        metadata={INSTRUCTED: "1"} if parsed.instructions else {},
        ignored=(*ignored_names(extra, _REFUSED), *tools.unknown, *_without_effect(parsed)),
    )
    return request, parsed


def _without_effect(body: ResponsesBody) -> Iterator[str]:
    """Names of what is understood and does nothing here."""
    for i, included in enumerate(body.include or ()):
        if included != LOGPROBS:
            yield f"include[{i}]"
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        yield "top_logprobs"
    for name, value in (body.text or {}).items():
        if name != "format" and value is not None:
            yield from ignored_names({f"text.{name}": value}, {})
    if body.truncation not in (None, "disabled"):
        yield "truncation"


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
