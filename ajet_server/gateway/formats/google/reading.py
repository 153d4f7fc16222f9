"""Parse the body of ``generateContent``, ``streamGenerateContent`` and ``countTokens``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
    Body,
    Neutral,
    Penalty,
    Seed,
    Temperature,
    Tokens,
    TopK,
    TopP,
    ignored_names,
    json_text,
    read_object,
    refuse_unsupported,
    request_error,
    stop_strings,
    wrong,
)
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.google.contents import Contents, part_text, parts_of
from ajet_server.gateway.formats.google.names import camel_case, camel_fields
from ajet_server.gateway.formats.google.schemas import json_schema
from ajet_server.gateway.formats.request import ModelRequest, Tools, function_spec
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec

ID_PREFIX = "gen-"
_MAX_CONTENTS = 16384
_MAX_TOOLS = 1024
# Limit on the logprobs listed per position, times the candidates, as in chat completions.
_MAX_LISTED = 512

_REFUSED: Neutral = {"cachedContent": ("",)}
_INSTEAD = {"cachedContent": "send the contents with each request"}
_JSON = "application/json"
_TEXT = "text/plain"
_DECLARED = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
_CALLING = "toolConfig.functionCallingConfig"


class _GoogleBody(Body):
    model_config = ConfigDict(alias_generator=to_camel)


class _GenerationConfig(_GoogleBody):
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    candidate_count: Annotated[int, Field(ge=1, le=128)] | None = None
    max_output_tokens: Tokens | None = None
    stop_sequences: Any = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=128)] | None = None
    response_mime_type: str | None = None
    response_schema: Any = None
    response_json_schema: Any = None
    response_modalities: list[str] | None = None
    thinking_config: dict[str, Any] | None = None


class _CallingConfig(_GoogleBody):
    mode: str | None = None
    allowed_function_names: list[str] | None = None


class _ToolConfig(_GoogleBody):
    function_calling_config: _CallingConfig | None = None


class _GenerateBody(_GoogleBody):
    contents: Annotated[list[Any], Field(min_length=1, max_length=_MAX_CONTENTS)]
    model: str | None = None
    system_instruction: Any = None
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_config: _ToolConfig | None = None
    generation_config: _GenerationConfig | None = None


def read_generate_request(
    body: bytes, session: Session, *, stream: bool = False
) -> tuple[ModelRequest, bool]:
    """Read a request body.

    :return: the request, and whether its answer shall have the model's thoughts.
    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
    """
    return _read(read_object(body), session, stream=stream)


def read_count_request(body: bytes, session: Session) -> ModelRequest:
    """Read the body of ``countTokens``, which has contents or a ``generateContentRequest``.

    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
    """
    plain = camel_case(read_object(body))
    inner = plain.get("generateContentRequest")
    if inner is not None and not isinstance(inner, dict):
        wrong("generateContentRequest", "an object")
    return _read(inner or plain, session, stream=False)[0]


def _read(plain: dict[str, Any], session: Session, *, stream: bool) -> tuple[ModelRequest, bool]:
    try:
        parsed = _GenerateBody.model_validate(_camel_body(plain))
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, _INSTEAD)
    config = parsed.generation_config or _GenerationConfig()
    tools, unused = _tools(parsed.tools or ())
    choice = _choice(parsed.tool_config)
    contents = Contents(session, list(_system(parsed.system_instruction)))
    messages = tuple(contents.read(parsed.contents))
    _check_modalities(config.response_modalities)
    request = ModelRequest(
        id_prefix=ID_PREFIX,
        messages=messages,
        tools=tools.chosen(choice),
        tool_choice=choice or FREE_CHOICE,
        answer_format=_answer_format(config),
        n=config.candidate_count or 1,
        max_tokens=config.max_output_tokens,
        temperature=1.0 if config.temperature is None else config.temperature,
        top_p=config.top_p or 1.0,
        top_k=max(0, config.top_k or 0),
        seed=config.seed,
        frequency_penalty=config.frequency_penalty or 0.0,
        presence_penalty=config.presence_penalty or 0.0,
        stop=stop_strings(config.stop_sequences, "generationConfig.stopSequences"),
        stream=stream,
        include_usage=True,
        logprobs=bool(config.response_logprobs),
        top_logprobs=_top_logprobs(config),
        whole_calls=True,
        ignored=(
            *ignored_names(extra, _REFUSED),
            *tools.unknown,
            *sorted(unused | contents.without_effect),
            *_without_effect(parsed, config),
        ),
    )
    return request, (config.thinking_config or {}).get("includeThoughts") is True


def _camel_body(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a body with the names of all fields that are read below in camel case."""
    body = camel_case(plain)
    for name in ("generationConfig", "toolConfig"):
        if name in body:
            body[name] = camel_fields(body[name])
    for name, inner in (
        ("generationConfig", "thinkingConfig"),
        ("toolConfig", "functionCallingConfig"),
    ):
        if isinstance(body.get(name), dict) and inner in body[name]:
            body[name][inner] = camel_fields(body[name][inner])
    return body


def _system(instruction: Any) -> Iterator[ChatMessage]:
    path = "systemInstruction"
    text = "".join(part_text(part, where) for where, part in parts_of(instruction, path))
    if text:
        yield ChatMessage("system", text)


def _tools(bodies: Sequence[Any]) -> tuple[Tools, set[str]]:
    """Return the tools, and the names of fields of declarations that have no effect."""
    offered: list[ToolSpec] = []
    unknown: list[str] = []
    unused: set[str] = set()
    for i, tool in enumerate(bodies):
        path = f"tools[{i}]"
        if not isinstance(tool, dict):
            wrong(path, "an object with functionDeclarations")
        for name, value in camel_case(tool).items():
            if value is None:
                continue
            where = f"{path}.{name}"
            if name != "functionDeclarations":
                unknown += (f"{path}.{plain}" for plain in ignored_names({name: value}, {}))
                continue
            if not isinstance(value, list) or len(value) > _MAX_TOOLS:
                wrong(where, f"a list of at most {_MAX_TOOLS} functions")
            for j, function in enumerate(value):
                offered.append(_declared(function, f"{where}[{j}]"))
                unused |= {
                    f"functionDeclarations.{key}"
                    for key in ignored_names(camel_case(function), {})
                    if key not in _DECLARED
                }
    return Tools(tuple(offered), tuple(unknown)), unused


def _declared(function: Any, path: str) -> ToolSpec:
    if not isinstance(function, dict):
        wrong(path, "an object with name and description")
    declared = camel_case(function)
    if declared.get("parametersJsonSchema") is not None:
        return function_spec(declared, path, "parametersJsonSchema")
    if declared.get("parameters") is not None:
        declared["parameters"] = json_schema(declared["parameters"], f"{path}.parameters")
    return function_spec(declared, path)


def _choice(config: _ToolConfig | None) -> ToolChoice | None:
    calling = config.function_calling_config if config is not None else None
    if calling is None:
        return FREE_CHOICE
    names = tuple(calling.allowed_function_names or ())
    mode = calling.mode or "AUTO"
    if mode not in ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"):
        wrong(f"{_CALLING}.mode", '"AUTO", "ANY", "NONE" or "VALIDATED"')
    if mode == "NONE":
        return None
    if mode == "ANY":
        return ToolChoice(forced=True, names=names, param=_CALLING)
    if names:
        raise UnsupportedError(
            f"{_CALLING}.allowedFunctionNames: only supported with mode ANY: offer only these "
            "functions",
            param=f"{_CALLING}.allowedFunctionNames",
        )
    return FREE_CHOICE


def _answer_format(config: _GenerationConfig) -> AnswerFormat | None:
    path = "generationConfig"
    mime = config.response_mime_type or ""
    if mime not in ("", _TEXT, _JSON):
        raise UnsupportedError(
            f"{path}.responseMimeType: only {_TEXT!r} and {_JSON!r} are supported",
            param=f"{path}.responseMimeType",
        )
    schemas = {
        "responseSchema": config.response_schema,
        "responseJsonSchema": config.response_json_schema,
    }
    given = [name for name, schema in schemas.items() if schema is not None]
    if not given:
        return AnswerFormat("", f"{path}.responseMimeType") if mime == _JSON else None
    param = f"{path}.{given[0]}"
    if len(given) > 1:
        raise RequestError(f"{param}: send only one of {' and '.join(given)}", param=param)
    if mime == _TEXT:
        raise RequestError(f"{param}: set responseMimeType to {_JSON!r} as well", param=param)
    if given[0] == "responseSchema":
        return AnswerFormat(json_text(json_schema(config.response_schema, param)), param)
    if not isinstance(config.response_json_schema, dict):
        wrong(param, "a JSON schema object")
    return AnswerFormat(json_text(config.response_json_schema), param)


def _check_modalities(modalities: list[str] | None) -> None:
    if modalities and any(one.upper() != "TEXT" for one in modalities):
        raise UnsupportedError(
            "generationConfig.responseModalities: only TEXT is supported",
            param="generationConfig.responseModalities",
        )


def _top_logprobs(config: _GenerationConfig) -> int:
    path = "generationConfig.logprobs"
    if config.logprobs and not config.response_logprobs:
        raise RequestError(f"{path}: set responseLogprobs to true as well", param=path)
    if (config.candidate_count or 1) * (config.logprobs or 0) > _MAX_LISTED:
        raise RequestError(
            f"{path}: candidateCount * logprobs must be at most {_MAX_LISTED}", param=path
        )
    return config.logprobs or 0


def _without_effect(body: _GenerateBody, config: _GenerationConfig) -> Iterator[str]:
    """Yield the names of fields that are recognised but have no effect."""
    yield from _named("generationConfig", config.model_extra)
    thinking = dict(config.thinking_config or {})
    thinking.pop("includeThoughts", None)
    yield from _named("generationConfig.thinkingConfig", thinking)
    if body.tool_config is not None:
        yield from _named("toolConfig", body.tool_config.model_extra)
        if (calling := body.tool_config.function_calling_config) is not None:
            yield from _named(_CALLING, calling.model_extra)
            if calling.mode == "VALIDATED":
                yield f"{_CALLING}.mode"


def _named(path: str, fields: dict[str, Any] | None) -> Iterator[str]:
    for name in ignored_names(fields or {}, {}):
        yield f"{path}.{name}"
