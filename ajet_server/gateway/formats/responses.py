"""OpenAI responses: parse the body of ``POST /v1/responses``, and write its JSON and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import Field, ValidationError

from ajet_core.errors import (
    AjetError,
    ContextLengthError,
    NotFoundError,
    RequestError,
    UnsupportedError,
)
from ajet_server.gateway.formats.answer import Spans, random_hex
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
    unseen_names,
    wrong,
)
from ajet_server.gateway.formats.chat import TEXT_PARTS, content_text
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.formats.dialect import Dialect, DialectRequest, StreamWriter, event
from ajet_server.gateway.formats.events import Choice, ChoiceDelta, Delta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.openai_errors import openai_error
from ajet_server.gateway.formats.request import ModelRequest, Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage, Role, ToolCall, ToolSpec, as_json

ID_PREFIX = "resp_"

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(slots=True)
class Items:
    """Collects the items of an input into messages.

    Adjacent reasoning, text and calls of the assistant become one message.

    :param grouped: as `Tools.grouped`.
    """

    session: Session
    grouped: Mapping[str, tuple[str, str]]
    _messages: list[ChatMessage] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)

    def read(self, given: str | list[Any] | None) -> list[ChatMessage]:
        """Return the messages of an input."""
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
                self._calls.append(_call(item, path, self.grouped))
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
        """Resolve an item reference: the whole answer replaces the first reference to its items.

        The ids of items contain the id of their answer.
        """
        name = str(item.get("id"))
        _, _, stem = name.partition("_")
        known = self.session.index.conversation(f"{ID_PREFIX}{stem.partition('-')[0]}")
        if known is None:
            raise NotFoundError(
                f"{path}.id: this episode has no item {name[:80]!r}", param=f"{path}.id"
            )
        answer = known[1][-1]
        if not self._messages or self._messages[-1] != answer:
            self._answered()
            self._messages.append(answer)

    def _answered(self) -> None:
        """Add the collected parts of the assistant as one message."""
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
    """Return the reasoning as the model wrote it; summaries are another model's and are ignored."""
    parts = item.get("content")
    return [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def _call(item: dict[str, Any], path: str, grouped: Mapping[str, tuple[str, str]]) -> ToolCall:
    name, arguments = item.get("name"), item.get("arguments")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    if isinstance(namespace := item.get("namespace"), str) and namespace:
        # The request may no longer offer the tool.
        names = (shown for shown, known in grouped.items() if known == (namespace, name))
        name = next(names, f"{_prefix(namespace)}{name}")
    if isinstance(arguments, dict):
        try:
            arguments = as_json(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{path}.arguments: not serializable as JSON: {error}", param=f"{path}.arguments"
            ) from error
    if not isinstance(arguments, str | None):
        wrong(f"{path}.arguments", "JSON text")
    return ToolCall(str(item.get("call_id") or ""), name, arguments or "{}")


def _output(item: dict[str, Any], path: str) -> ChatMessage:
    call_id = item.get("call_id")
    if not (isinstance(call_id, str) and call_id):
        wrong(f"{path}.call_id", "the id of the call that this output belongs to")
    text = content_text(item.get("output"), f"{path}.output", of_tool=True)
    return ChatMessage("tool", text, tool_call_id=call_id)


def reasoning_item(exchange: Exchange, text: str, status: str) -> dict[str, Any]:
    """Return a reasoning item."""
    return {
        "id": f"rs_{_stem(exchange)}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": status,
    }


def message_item(
    exchange: Exchange, text: str, status: str, logprobs: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a message item."""
    return {
        "id": f"msg_{_stem(exchange)}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}],
    }


def call_item(  # noqa: PLR0917 - the fields of a call
    exchange: Exchange, index: int, call_id: str, name: str, arguments: str, status: str
) -> dict[str, Any]:
    """Return a function call item.

    :param name: the name that the model was shown.
    """
    namespace, name = exchange.request.grouped_tools.get(name, ("", name))
    return {
        "id": f"fc_{_stem(exchange)}-{index}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "arguments": arguments,
        "status": status,
    }


def _stem(exchange: Exchange) -> str:
    return exchange.completion_id.removeprefix(ID_PREFIX)


def status_of(finish_reason: str) -> str:
    """Return the status of an answer with this finish reason."""
    return "incomplete" if finish_reason == "length" else "completed"


INSTRUCTED = "instructed"
"""Key in a call's metadata: its first message is the instructions, which are not carried over."""

LOGPROBS = "message.output_text.logprobs"
"""The value of ``include`` that adds logprobs to answers."""

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
    """The supported keys of a request body."""

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

    :raises NotFoundError: the episode has no previous response or item with the given id.
    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
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
    messages += Items(session, tools.grouped).read(parsed.input)
    if not messages:
        raise RequestError("input: expected a string or a list of items", param="input")
    logprobs = LOGPROBS in (parsed.include or ())
    request = ModelRequest(
        id_prefix=ID_PREFIX,
        model=parsed.model or "",
        messages=tuple(messages),
        tools=tools.chosen(choice),
        grouped_tools=tools.grouped,
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
    """Yield the names of fields that are recognised but have no effect."""
    items = body.input if isinstance(body.input, list) else []
    results = [
        item.get("output")
        for item in items
        if isinstance(item, dict) and item.get("type") == "function_call_output"
    ]
    yield from unseen_names("function_call_output", results, TEXT_PARTS)
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
        'text.format: expected an object of type "text", "json_object" or "json_schema"; '
        '"json_schema" needs a schema',
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
            f'tool_choice: {str(choice)[:40]!r} is not supported: set "required", or name '
            "one function",
            param="tool_choice",
        )
    if choice == "function" and not name:
        wrong("tool_choice.name", "a non-empty string")
    single = body.parallel_tool_calls is False
    return ToolChoice(
        forced=choice in ("required", "function"),
        names=(name,) if name else (),
        single=single or bool(name),
        param="parallel_tool_calls" if single and choice in (None, "auto") else "tool_choice",
    )


def _tools(bodies: Sequence[Any]) -> Tools:
    offered: list[ToolSpec] = []
    unknown: list[str] = []
    grouped: dict[str, tuple[str, str]] = {}
    # Names outside of namespaces stay as they are.
    taken = {tool.get("name") for tool in bodies if isinstance(tool, dict)}
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        kind = tool.get("type") if isinstance(tool, dict) else "function"
        if kind == "namespace":
            for where, namespace, spec in _of_namespace(tool, path):
                if spec is None:
                    unknown.append(where)
                    continue
                name = spec["function"]["name"]
                shown = f"{_prefix(namespace)}{name}"
                while shown in taken:
                    shown += "_"
                taken.add(shown)
                grouped[shown] = (namespace, name)
                offered.append({**spec, "function": {**spec["function"], "name": shown}})
        elif kind != "function":
            unknown.append(path)
        else:
            offered.append(function_spec(tool, path))
    return Tools(tuple(offered), tuple(unknown), grouped=grouped)


def _of_namespace(
    namespace: dict[str, Any], path: str
) -> Iterator[tuple[str, str, ToolSpec | None]]:
    """Yield the tools of a namespace: their paths, the namespace, and functions.

    The description of the namespace is put before that of its first function. Tools that are not
    functions are None.
    """
    name, tools = namespace.get("name"), namespace.get("tools")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        wrong(f"{path}.tools", f"a list of at most {_MAX_TOOLS} tools")
    said = namespace.get("description")
    about = f"Tools {_prefix(name)}*: {said}" if isinstance(said, str) and said else ""
    for i, tool in enumerate(tools):
        where = f"{path}.tools[{i}]"
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            yield where, name, None
            continue
        spec = function_spec(tool, where)
        if about:
            own = spec["function"].get("description", "")
            spec["function"]["description"] = "\n\n".join(filter(None, (about, own)))
            about = ""
        yield where, name, spec


def _prefix(namespace: str) -> str:
    """Return what the names of a namespace's tools begin with."""
    return namespace if namespace.endswith("__") else f"{namespace}__"


def _instructions(body: ResponsesBody) -> Iterator[ChatMessage]:
    if body.instructions:
        yield ChatMessage("system", body.instructions)


def _before(body: ResponsesBody, session: Session) -> list[ChatMessage]:
    """Return the messages up to the previous response, without its request's instructions."""
    name = body.previous_response_id
    if not name:
        return []
    known = session.index.conversation(name)
    if known is None:
        raise NotFoundError(
            f"previous_response_id: this episode has no response {name[:80]!r}",
            param="previous_response_id",
        )
    call, messages = known
    return messages[1:] if INSTRUCTED in call.metadata else messages


class ResponseForm(Protocol):
    """Makes the response objects in the events of a stream."""

    def begun(self, exchange: Exchange) -> dict[str, Any]:
        """Return a response that has no items yet."""

    def complete(
        self, exchange: Exchange, choice: Choice, items: list[dict[str, Any]], spans: Spans
    ) -> dict[str, Any]:
        """Return a response with all its items."""


@dataclass(slots=True)
class ResponseWriter(StreamWriter):
    """Writes the events of a response, of whose items at most one is open.

    :ivar done: complete items.
    """

    form: ResponseForm
    exchange: Exchange
    done: list[dict[str, Any]] = field(default_factory=list)
    _spans: Spans | None = None
    _kind: str = ""
    _text: str = ""
    _said: str = ""
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _item: dict[str, Any] = field(default_factory=dict)
    _number: int = 0

    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield the events from ``response.created`` to ``response.completed``."""
        match happened:
            case Started(_, generation):
                self._spans = Spans(generation, self.exchange.request.callable_tools)
                yield from self._begun()
            case ChoiceDelta(_, delta):
                yield from self._grown(delta)
            case Choice(_, _, answer, reason, rest):
                assert self._spans is not None, "a choice starts before it ends"
                yield from self._grown(rest)
                if not (answer.content or answer.tool_calls):
                    yield from self._in_text()
                yield from self._closed(status_of(reason))
                response = self.form.complete(self.exchange, happened, self.done, self._spans)
                yield self._event(f"response.{response['status']}", response=response)

    def heartbeat(self) -> Iterator[bytes]:
        """Yield OpenAI's event ``keepalive``, or the first events, which its SDK expects first."""
        if self._number:
            yield self._event("keepalive")
        else:
            yield from self._begun()

    def _begun(self) -> Iterator[bytes]:
        if not self._number:
            begun = self.form.begun(self.exchange)
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)

    def _event(self, name: str, /, **content: Any) -> bytes:
        """Return the next event."""
        number, self._number = self._number, self._number + 1
        return event(object_text({"type": name, "sequence_number": number, **content}), name)

    def _grown(self, delta: Delta) -> Iterator[bytes]:
        """Yield the events of a delta."""
        if delta.reasoning:
            if self._kind != "reasoning":
                yield from self._open("reasoning", reasoning_item(self.exchange, "", "in_progress"))
                yield self._part("response.content_part.added")
            self._text += delta.reasoning
            yield self._inside("response.reasoning_text.delta", delta=delta.reasoning)
        if delta.content:
            yield from self._in_text()
            self._text += delta.content
            logprobs = self._more_logprobs(delta.content)
            yield self._inside("response.output_text.delta", delta=delta.content, logprobs=logprobs)
        for call in delta.calls:
            if call.id is not None:
                item = call_item(
                    self.exchange, call.index, call.id, call.name or "", "", "in_progress"
                )
                yield from self._open("function_call", item)
            self._text += call.arguments
            if call.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)

    def _in_text(self) -> Iterator[bytes]:
        """Open a message item, unless one is open."""
        if self._kind != "message":
            item = message_item(self.exchange, "", "in_progress", [])
            if any(one["type"] == "message" for one in self.done):
                # Text after a call: a second message item needs another id.
                item["id"] += f"-{len(self.done)}"
            yield from self._open("message", item)
            yield self._part("response.content_part.added")

    def _closed(self, status: str = "completed") -> Iterator[bytes]:
        """Yield the end of the open item."""
        text, kind = self._text, self._kind
        match kind:
            case "reasoning":
                self._item["content"][0]["text"] = text
                yield self._inside("response.reasoning_text.done", text=text)
                yield self._part("response.content_part.done")
            case "message":
                listed = self._logprobs
                self._item["content"][0] |= {"text": text, "logprobs": listed}
                yield self._inside("response.output_text.done", text=text, logprobs=listed)
                yield self._part("response.content_part.done")
            case "function_call":
                self._item["arguments"] = text
                name = self._item["name"]
                yield self._of_item(
                    "response.function_call_arguments.done", name=name, arguments=text
                )
            case _:
                return
        self._item["status"] = status
        self.done.append(self._item)
        yield self._event(
            "response.output_item.done", output_index=len(self.done) - 1, item=self._item
        )
        self._kind = ""

    def _open(self, kind: str, item: dict[str, Any]) -> Iterator[bytes]:
        yield from self._closed()
        self._kind, self._text, self._logprobs, self._item = kind, "", [], item
        # Without its parts: separate events add them.
        bare = {**item, "content": []} if "content" in item else item
        yield self._event("response.output_item.added", output_index=len(self.done), item=bare)

    def _more_logprobs(self, text: str) -> list[dict[str, Any]]:
        self._said += text
        if self._spans is None or not self.exchange.request.logprobs:
            return []
        more = self._spans.more_text(self._said)
        self._logprobs += more
        return more

    def _of_item(self, name: str, /, **content: Any) -> bytes:
        return self._event(name, item_id=self._item["id"], output_index=len(self.done), **content)

    def _inside(self, name: str, /, **content: Any) -> bytes:
        return self._of_item(name, content_index=0, **content)

    def _part(self, name: str) -> bytes:
        return self._inside(name, part=self._item["content"][0])


class ResponsesDialect(Dialect):
    """``POST /v1/responses``."""

    summary = "OpenAI responses"

    def read(self, body: bytes, session: Session) -> ResponsesRequest:
        """Parse a body, and look up the conversation that it continues."""
        return ResponsesRequest(*read_responses_request(body, session))

    def error(self, error: AjetError) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {"error": _error(error)}

    def error_event(self, error: AjetError, position: int) -> bytes:
        """Return an ``error`` event, which the SDK passes on."""
        fields = {"code": error.type, "message": error.message, "param": error.param}
        return event(object_text({"type": "error", "sequence_number": position, **fields}), "error")


@dataclass(frozen=True, slots=True)
class ResponsesRequest(DialectRequest):
    """A request for a response.

    :param body: the request body, parts of which the response repeats.
    """

    body: ResponsesBody

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return a ``response``."""
        (choice,) = choices
        spans = Spans(choice.generation, exchange.request.callable_tools)
        items = _items(exchange, choice, spans)
        return object_text(self.complete(exchange, choice, items, spans))

    def writer(self, exchange: Exchange) -> ResponseWriter:
        """Return a writer of the events from ``response.created`` to ``response.completed``."""
        return ResponseWriter(self, exchange)

    def begun(self, exchange: Exchange) -> dict[str, Any]:
        """Return a response that has no items yet."""
        return self._response(exchange, "in_progress", [])

    def too_long(self, error: ContextLengthError, model_name: str, now: float) -> bytes:
        """Return a stream with a failed response.

        On this event, programs compact their conversation; on an error status they give up.
        """
        problem = _error(error)
        common = {
            "id": f"{ID_PREFIX}{random_hex(12)}",
            "created_at": int(now),
            "model": model_name,
            "output": [],
        }
        events: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": self._common("in_progress") | common}),
            ("error", {"error": problem}),
            ("response.failed", {"response": self._common("failed") | common | {"error": problem}}),
        ]
        return b"".join(
            event(object_text({"type": name, "sequence_number": i, **content}), name)
            for i, (name, content) in enumerate(events)
        )

    def complete(
        self, exchange: Exchange, choice: Choice, items: list[dict[str, Any]], spans: Spans
    ) -> dict[str, Any]:
        """Return a response with all its items."""
        response = self._response(exchange, status_of(choice.finish_reason), items)
        if choice.finish_reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        reasoned = spans.reasoning() if choice.answer.reasoning else 0
        prompt, sampled = len(exchange.prompt.ids), len(choice.generation.sampled_ids)
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": prompt + sampled,
        }
        return response

    def _response(
        self, exchange: Exchange, status: str, items: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": exchange.completion_id,
            "created_at": int(exchange.created_at),
            "model": exchange.model_name,
            "output": items,
            **self._common(status),
        }

    def _common(self, status: str) -> dict[str, Any]:
        """Return the fields that a response repeats from its request, and constant fields."""
        body, request = self.body, self.request
        return {
            "object": "response",
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": body.store is not False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}, **_given(body.text)},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
        }


def _items(exchange: Exchange, choice: Choice, spans: Spans) -> list[dict[str, Any]]:
    answer, status = choice.answer, status_of(choice.finish_reason)
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        items.append(reasoning_item(exchange, answer.reasoning, "completed"))
    if answer.content or not answer.tool_calls:
        logprobs = spans.more_text(answer.content) if exchange.request.logprobs else []
        items.append(message_item(exchange, answer.content, status, logprobs))
    items += [
        call_item(exchange, i, call.id, call.name, call.arguments, status)
        for i, call in enumerate(answer.tool_calls)
    ]
    return items


def _error(error: AjetError) -> dict[str, Any]:
    """Return OpenAI's error object.

    For a prompt that is too long it has OpenAI's wording, by which programs decide to compact their
    conversation.
    """
    problem: dict[str, Any] = openai_error(error)["error"]
    if isinstance(error, ContextLengthError):
        problem["message"] = f"Your input exceeds the context window of this model. {error.message}"
    return problem


def _given(text: dict[str, Any] | None) -> dict[str, Any]:
    """Return the settings in ``text`` that are not null."""
    return {name: value for name, value in (text or {}).items() if value is not None}
