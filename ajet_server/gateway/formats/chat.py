"""OpenAI chat completions: parse the body of ``POST /v1/chat/completions``, and write answers.

Parsing tolerates variations of form, but refuses what the server does not support.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import AjetError, RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
    Body,
    LogitBias,
    MinP,
    Neutral,
    Penalty,
    Seed,
    StreamOptions,
    Temperature,
    Tokens,
    TopK,
    TopP,
    ignored_names,
    json_text,
    list_text,
    logit_bias,
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
from ajet_server.gateway.formats.dialect import (
    COMMENT,
    Dialect,
    DialectRequest,
    StreamWriter,
    event,
)
from ajet_server.gateway.formats.events import Choice, ChoiceDelta, Delta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.openai_errors import openai_error
from ajet_server.gateway.formats.request import ModelRequest, Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage, Role, ToolCall, as_json

# "developer" is OpenAI's newer name of the system role; models do not know it.
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MAX_TOOL_CALLS = 1024
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content parts that the model can read, each with the key of its text."""


class FunctionBody(BaseModel):
    """The function of a tool call."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: Any = None


class ToolCallBody(BaseModel):
    """A tool call in an assistant message; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    function: FunctionBody
    id: str | None = None
    type: str | None = None


class MessageBody(BaseModel):
    """A message as clients send it; unknown keys are ignored."""

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
    """Return the messages of a request.

    :param known: messages of an earlier request. Clients send the whole conversation with every
        turn; messages that are the same need not be parsed again.
    :raises pydantic.ValidationError: a message is malformed.
    :raises UnsupportedError: a message has a role or content that the model cannot read.
    :raises RequestError: a value has the wrong type.
    """
    reused: list[ChatMessage | None] = [
        message if _says_plainly(body, message) else None
        for body, message in zip(bodies, known, strict=False)
    ]
    reused += [None] * (len(bodies) - len(reused))
    new = [body for body, message in zip(bodies, reused, strict=True) if message is None]
    try:
        parsed = iter(_Messages(messages=new).messages)
    except ValidationError:
        # Validate all messages, so that the error has the index in the request.
        _Messages(messages=list(bodies))
        raise
    return tuple(
        chat_message(next(parsed), f"messages[{i}]") if message is None else message
        for i, message in enumerate(reused)
    )


def _says_plainly(body: Any, message: ChatMessage) -> bool:
    """Whether a body is plainly this message and has no additional keys.

    False can also mean that comparing them takes more than this check.
    """
    return (
        isinstance(body, dict)
        and len(body) == (2 if message.tool_call_id is None else 3)
        and body.get("content") == message.content
        and body.get("role") == message.role
        and body.get("tool_call_id") == message.tool_call_id
        and not (message.tool_calls or message.reasoning or message.name)
    )


def chat_message(body: MessageBody, path: str) -> ChatMessage:
    """Convert `body` to a message.

    :param path: path of the message in the request, for errors.
    :raises UnsupportedError: the message has a role or content that the model cannot read.
    :raises RequestError: a value has the wrong type.
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
        content = content_text(content, f"{path}.content", of_tool=role == "tool")
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


def content_text(content: Any, path: str, *, of_tool: bool = False) -> str:
    """Return the text of a message's content.

    :param content: a string, a list of content parts, or None.
    :param of_tool: it is a tool's result, in which a text replaces other parts.
    :raises UnsupportedError: a part is not text.
    :raises RequestError: the content is malformed.
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
        if kind not in TEXT_PARTS:
            if of_tool:
                texts.append(unseen(kind))
                continue
            raise UnsupportedError(
                f"{where}.type: content of type {kind[:40]!r} is not supported: this server "
                "reads text only",
                param=f"{where}.type",
            )
        key = TEXT_PARTS[kind]
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
                f"{path}.function.arguments: not serializable as JSON: {error}",
                param=f"{path}.function.arguments",
            ) from error
    return ToolCall(body.id or "", body.function.name, arguments)


_MAX_MESSAGES = 16384
_MAX_TOOLS = 1024
# Limit on the logprobs listed per position, times the choices: they make up most of a large answer.
_MAX_LISTED = 512

# Unsupported settings that would change the answer, with their values that change nothing.
_REFUSED: Neutral = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": (),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "modalities": ([], ["text"]),
    "prediction": (),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
_INSTEAD = {
    "chat_template_kwargs": "the run's model.renderer decides how messages are written",
    "function_call": "use tools and tool_choice",
    "functions": "use tools",
}


class _ChatBody(Body):
    messages: Annotated[list[Any], Field(min_length=1, max_length=_MAX_MESSAGES)]
    model: str | None = None
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    response_format: Any = None
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=128)] | None = None
    return_token_ids: bool | None = None


def read_chat_request(body: bytes, known: Sequence[ChatMessage] = ()) -> ModelRequest:
    """Read a request body.

    :param known: messages of an earlier request; leading messages that are the same are reused.
    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
    """
    plain = read_object(body)
    try:
        parsed = _ChatBody.model_validate(plain)
        messages = chat_messages(parsed.messages, known)
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, _INSTEAD)
    tools = _tools(parsed.tools or ())
    choice = _choice(parsed)
    if parsed.top_logprobs and not parsed.logprobs:
        raise RequestError("top_logprobs: set logprobs to true as well", param="top_logprobs")
    if (parsed.n or 1) * (parsed.top_logprobs or 0) > _MAX_LISTED:
        raise RequestError(
            f"top_logprobs: n * top_logprobs must be at most {_MAX_LISTED}; reduce n or "
            "top_logprobs",
            param="top_logprobs",
        )
    return ModelRequest(
        id_prefix="chatcmpl-",
        model=parsed.model or "",
        messages=messages,
        has_names=any(message.is_named for message in messages),
        tools=tools.chosen(choice),
        tool_choice=choice or FREE_CHOICE,
        answer_format=_answer_format(parsed.response_format),
        n=parsed.n or 1,
        max_tokens=parsed.max_completion_tokens or parsed.max_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
        min_p=parsed.min_p or 0.0,
        seed=parsed.seed,
        frequency_penalty=parsed.frequency_penalty or 0.0,
        presence_penalty=parsed.presence_penalty or 0.0,
        logit_bias=logit_bias(parsed.logit_bias),
        stop=stop_strings(parsed.stop),
        stream=bool(parsed.stream),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        logprobs=bool(parsed.logprobs),
        top_logprobs=parsed.top_logprobs or 0,
        return_token_ids=bool(parsed.return_token_ids),
        ignored=(
            *ignored_names(extra, _REFUSED),
            *tools.unknown,
            *unseen_names("tool", _results(parsed.messages), TEXT_PARTS),
        ),
    )


def _results(messages: Sequence[Any]) -> Iterator[Any]:
    """Yield the contents of tools' results."""
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "tool":
            yield message.get("content")


def _tools(bodies: Sequence[Any]) -> Tools:
    offered, unknown = [], []
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        if not isinstance(tool, dict):
            wrong(path, "a tool object")
        if tool.get("type") != "function":
            unknown.append(path)
        else:
            # Keep the client's object: templates read it verbatim, with additional keys.
            function_spec(tool.get("function"), f"{path}.function")
            offered.append(tool)
    return Tools(tuple(offered), tuple(unknown))


def _choice(body: _ChatBody) -> ToolChoice | None:
    choice, name = body.tool_choice, ""
    if isinstance(choice, dict):
        function = choice.get("function")
        if isinstance(function, dict):
            name = str(function.get("name") or "")
        choice = choice.get("type")
    if choice == "none":
        return None
    if choice not in (None, "auto", "required", "function"):
        wrong("tool_choice", '"none", "auto", "required" or a function by name')
    if choice == "function" and not name:
        wrong("tool_choice.function.name", "a non-empty string")
    single = body.parallel_tool_calls is False
    return ToolChoice(
        forced=choice in ("required", "function"),
        names=(name,) if name else (),
        single=single or bool(name),
        param="parallel_tool_calls" if single and choice in (None, "auto") else "tool_choice",
    )


def _answer_format(form: Any) -> AnswerFormat | None:
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return AnswerFormat("", "response_format")
        case "json_schema":
            described = form.get("json_schema")
            schema = described.get("schema") if isinstance(described, dict) else None
            if not isinstance(schema, dict):
                wrong("response_format.json_schema.schema", "a JSON schema object")
            return AnswerFormat(json_text(schema), "response_format")
    raise UnsupportedError(
        'response_format: only "text", "json_object" and "json_schema" are supported',
        param="response_format",
    )


def choice_json(request: ModelRequest, choice: Choice) -> bytes:
    """Return the JSON of a choice of a completion that is not streamed."""
    generation = choice.generation
    plain: dict[str, Any] = {
        "index": choice.choice,
        "message": choice.answer.to_json(),
        "finish_reason": choice.finish_reason,
    }
    if request.return_token_ids:
        plain["token_ids"] = generation.sampled_ids
    return object_text(plain, logprobs=generation.logprobs_text() if request.logprobs else b"null")


def delta_json(delta: Delta) -> dict[str, Any]:
    """Return the JSON of a delta's text and reasoning."""
    plain = {"reasoning_content": delta.reasoning, "content": delta.content}
    return {name: text for name, text in plain.items() if text}


def rest_json(rest: Delta, *, empty: bool) -> list[dict[str, Any]]:
    """Return the JSON of the deltas that complete an answer.

    :param empty: whether the answer has neither text nor tool calls.
    """
    deltas: list[dict[str, Any]] = []
    if rest.reasoning:
        deltas.append({"reasoning_content": rest.reasoning})
    if rest.content or empty:
        deltas.append({"content": rest.content})
    for call in rest.calls:
        filled = {"index": call.index, "function": {"arguments": call.arguments}}
        if call.id is None:
            deltas.append({"tool_calls": [filled]})
            continue
        function = {"name": call.name, "arguments": ""}
        opened = {"index": call.index, "id": call.id, "type": "function", "function": function}
        deltas += ({"tool_calls": [opened]}, {"tool_calls": [filled]})
    return deltas


def usage_json(exchange: Exchange, generations: Sequence[Generation]) -> dict[str, Any]:
    """Return the tokens used; the prompt counts once, whatever the number of choices."""
    prompt = len(exchange.prompt.ids)
    completion = sum(len(generation.sampled_ids) for generation in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@dataclass(slots=True)
class ChoiceWriter:
    """Writes one choice's part of the chunks of a stream.

    Logprobs and token ids are sent as tokens arrive, even while their text is held back.
    """

    request: ModelRequest
    index: int
    generation: Generation
    _written: int = 0

    @property
    def has_tokens(self) -> bool:
        """Whether there are new tokens whose logprobs or ids the client requested."""
        wanted = self.request.logprobs or self.request.return_token_ids
        return wanted and len(self.generation.sampled_ids) > self._written

    def choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """Return the JSON of the choice in the next chunk, with the tokens since the last one."""
        start, self._written = self._written, len(self.generation.sampled_ids)
        fresh = self._written > start
        choice: dict[str, Any] = {
            "index": self.index,
            "delta": delta,
            "finish_reason": finish_reason,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = self.generation.sampled_ids[start:]
        wanted = self.request.logprobs and fresh
        return object_text(
            choice, logprobs=self.generation.logprobs_text(start) if wanted else b"null"
        )


_DONE = event(b"[DONE]")


class ChatDialect(Dialect):
    """``POST /v1/chat/completions``."""

    summary = "OpenAI chat completions"

    def read(self, body: bytes, session: Session) -> ChatRequest:
        """Parse a body; messages of the previous request are not parsed again."""
        return ChatRequest(read_chat_request(body, session.index.latest_messages))

    def error(self, error: AjetError) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return openai_error(error)

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """Return an error object as an event, on which the SDKs raise."""
        return event(object_text(openai_error(error)))


@dataclass(frozen=True, slots=True)
class ChatRequest(DialectRequest):
    """A chat request."""

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return a ``chat.completion``."""
        request = exchange.request
        completion: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
            "usage": usage_json(exchange, [choice.generation for choice in choices]),
        }
        if request.return_token_ids:
            completion["prompt_token_ids"] = exchange.prompt.ids.tolist()
        return object_text(
            completion, choices=list_text([choice_json(request, choice) for choice in choices])
        )

    def writer(self, exchange: Exchange) -> ChatWriter:
        """Return a writer of ``chat.completion.chunk`` objects."""
        return ChatWriter(exchange)


@dataclass(slots=True)
class ChatWriter(StreamWriter):
    """Writes the chunks of one answer."""

    exchange: Exchange
    _generations: list[Generation] = field(default_factory=list)
    _writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    _complete: set[int] = field(default_factory=set)

    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield the chunks of a choice."""
        request = self.exchange.request
        writer = self._writers.get(happened.choice)
        match happened:
            case Started(choice, generation):
                self._generations.append(generation)
                writer = self._writers[choice] = ChoiceWriter(request, choice, generation)
                prompt = (
                    {"prompt_token_ids": self.exchange.prompt.ids.tolist()}
                    if request.return_token_ids
                    else {}
                )
                yield self._chunk(writer.choice({"role": "assistant"}), **prompt)
            case ChoiceDelta(_, delta):
                assert writer is not None, "a choice starts before it grows"
                if delta.calls:
                    for part in rest_json(delta, empty=False):
                        yield self._chunk(writer.choice(part))
                elif delta or writer.has_tokens:
                    yield self._chunk(writer.choice(delta_json(delta)))
            case Choice(choice, _, answer, reason, rest):
                assert writer is not None, "a choice starts before it ends"
                for part in rest_json(rest, empty=not (answer.content or answer.tool_calls)):
                    yield self._chunk(writer.choice(part))
                yield self._chunk(writer.choice({}, reason))
                self._complete.add(choice)

    def heartbeat(self) -> Iterator[bytes]:
        """Yield a chunk with an empty delta: unlike a comment, programs see it and keep waiting."""
        index = next(i for i in itertools.count() if i not in self._complete)
        if index < self.exchange.request.n:
            choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}
            yield self._chunk(object_text(choice))
        else:
            yield COMMENT

    def end(self) -> Iterator[bytes]:
        """Yield the usage, if it was requested, and the end of the stream."""
        if self.exchange.request.include_usage:
            yield self._chunk(usage=usage_json(self.exchange, self._generations))
        yield _DONE

    def _chunk(self, *choices: bytes, **more: Any) -> bytes:
        exchange = self.exchange
        chunk: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion.chunk",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
        }
        if exchange.request.include_usage:
            chunk["usage"] = None
        return event(object_text({**chunk, **more}, choices=list_text(choices)))
