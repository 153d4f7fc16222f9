"""The body of ``POST /v1/chat/completions``: liberal in form, strict about what cannot be honoured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
    Body,
    LogitBias,
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
    logit_bias,
    read_object,
    refuse_unsupported,
    request_error,
    stop_strings,
    wrong,
)
from ajet_server.gateway.formats.chat_messages import chat_messages
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.formats.tools import Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage

_MAX_MESSAGES = 16384
_MAX_TOOLS = 1024
# Logprobs that one position of one choice lists, times the choices: they are most of a large answer.
_MAX_LISTED = 512

# Settings that would change the answer and are not offered, with the values that change nothing.
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
    "min_p": (0,),
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


class _Body(Body):
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

    :param known: messages of an earlier request; those at the beginning of this one are taken over where they are the
        same.
    :raises UnsupportedError: it asks for something that cannot be honoured; `param` names it.
    :raises RequestError: it is no JSON object of the right form; `param` names the field.
    """
    plain = read_object(body)
    try:
        parsed = _Body.model_validate(plain)
        messages = chat_messages(parsed.messages, known)
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, _INSTEAD)
    tools = _tools(parsed.tools or ())
    choice = _choice(parsed)
    if parsed.top_logprobs and not parsed.logprobs:
        raise RequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    if (parsed.n or 1) * (parsed.top_logprobs or 0) > _MAX_LISTED:
        raise RequestError(
            f"top_logprobs: at most {_MAX_LISTED} together with n; ask for fewer of either",
            param="top_logprobs",
        )
    return ModelRequest(
        id_prefix="chatcmpl-",
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
        ignored=(*ignored_names(extra, _REFUSED), *tools.unknown),
    )


def _tools(bodies: Sequence[Any]) -> Tools:
    offered, unknown = [], []
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        if not isinstance(tool, dict):
            wrong(path, "a tool object")
        if tool.get("type") != "function":
            unknown.append(path)
        else:
            # Templates read it as it is, with whatever the client added.
            function_spec(tool.get("function"), f"{path}.function")
            offered.append(tool)
    return Tools(tuple(offered), tuple(unknown))


def _choice(body: _Body) -> ToolChoice | None:
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
        name=name,
        single=single,
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
