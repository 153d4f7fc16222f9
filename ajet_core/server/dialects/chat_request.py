"""The body of ``POST /v1/chat/completions``: liberal in form, strict about what cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.server.dialects.chat_messages import chat_messages
from ajet_core.server.rendering.messages import ChatMessage, ToolSpec

_MAX_MESSAGES = 16384
_MAX_TOOLS = 1024
# Logprobs that one position of one choice lists, times the choices: they are most of a large answer.
_MAX_LISTED = 512
_MAX_STOPS = 16
_MAX_STOP_LENGTH = 1024
_MAX_NAME = 64

# Settings that would change the answer and are not offered, with the values that change nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": ([], ["text"]),
    "prediction": (),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
_INSTEAD = {
    "chat_template_kwargs": "the run's model.renderer decides how messages are written",
    "function_call": "use tools and tool_choice",
    "functions": "use tools",
    "response_format": "ask for JSON in the prompt, or offer a tool",
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that is understood and can be honoured, as far as the engine is able to.

    :param tools: None if none are offered to the model, also where ``tool_choice`` is "none".
    :param max_tokens: None leaves all of the remaining context.
    :param most_tokens: a limit of the server's, which unlike that of the agent need not fit into the context.
    :param stop: the answer ends before the first of these texts.
    :param top_logprobs: most likely tokens to list at each position, if `logprobs`.
    :param ignored: names of the keys in the body that had no effect.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...] | None = None
    n: int = 1
    max_tokens: int | None = None
    most_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    ignored: tuple[str, ...] = ()


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class _Body(BaseModel):
    """The keys with a meaning here; all others end up in `model_extra`."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    messages: Annotated[list[Any], Field(min_length=1, max_length=_MAX_MESSAGES)]
    model: str | None = None
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=128)] | None = None
    return_token_ids: bool | None = None


def parse_chat_request(body: bytes, known: Sequence[ChatMessage] = ()) -> ChatRequest:
    """Read a request body.

    :param known: messages of an earlier request; those at the beginning of this one are taken over where they are the
        same.
    :raises UnsupportedError: it asks for something that cannot be honoured; `param` names it.
    :raises RequestError: it is no JSON object of the right form; `param` names the field.
    """
    try:
        plain = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(plain, dict):
        raise RequestError("the request body must be a JSON object")
    try:
        parsed = _Body.model_validate(plain)
        messages = chat_messages(parsed.messages, known)
    except ValidationError as error:
        raise _request_error(error) from error
    extra = parsed.model_extra or {}
    _refuse_unsupported(extra)
    tools = _offered_tools(parsed)
    if parsed.top_logprobs and not parsed.logprobs:
        raise RequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    if (parsed.n or 1) * (parsed.top_logprobs or 0) > _MAX_LISTED:
        raise RequestError(
            f"top_logprobs: at most {_MAX_LISTED} together with n; ask for fewer of either",
            param="top_logprobs",
        )
    return ChatRequest(
        messages=messages,
        tools=tools,
        n=parsed.n or 1,
        max_tokens=parsed.max_completion_tokens or parsed.max_tokens,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
        seed=parsed.seed,
        stop=_stop_strings(parsed.stop),
        stream=bool(parsed.stream),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        logprobs=bool(parsed.logprobs),
        top_logprobs=parsed.top_logprobs or 0,
        return_token_ids=bool(parsed.return_token_ids),
        ignored=_ignored(extra),
    )


def _refuse_unsupported(extra: Mapping[str, Any]) -> None:
    for name in extra.keys() & _REFUSED.keys():
        value = extra[name]
        if value is None or value in _REFUSED[name]:
            continue
        neutral = _REFUSED[name]
        hint = _INSTEAD.get(name) or (
            f"leave it out or send {_json(neutral[-1])}" if neutral else "leave it out"
        )
        raise UnsupportedError(f"{name} is not supported by this server: {hint}", param=name)


def _offered_tools(body: _Body) -> tuple[ToolSpec, ...] | None:
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()))
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") in ("auto", "none"):
        choice = choice["type"]
    if choice == "none":
        return None
    if choice not in (None, "auto"):
        raise UnsupportedError(
            'tool_choice must be "auto" or "none": this server cannot force the model to call a tool',
            param="tool_choice",
        )
    if tools and body.parallel_tool_calls is False:
        raise UnsupportedError(
            "parallel_tool_calls: false is not supported by this server: the model decides how many "
            "tools it calls; leave it out and run the calls one after the other",
            param="parallel_tool_calls",
        )
    return tools or None


def _tool(tool: Any, path: str) -> ToolSpec:
    if not isinstance(tool, dict):
        _wrong(path, "a tool object")
    if tool.get("type") != "function":
        raise UnsupportedError(
            f'{path}.type: only "function" tools can be offered to the model, not {_json(tool.get("type"))}',
            param=f"{path}.type",
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        _wrong(f"{path}.function", "an object with name, description and parameters")
    name = function.get("name")
    if not (isinstance(name, str) and name):
        _wrong(f"{path}.function.name", "a non-empty string")
    if not isinstance(function.get("parameters", {}), dict | None):
        _wrong(f"{path}.function.parameters", "a JSON schema object")
    return tool


def _stop_strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(texts, list)
        or len(texts) > _MAX_STOPS
        or not all(isinstance(text, str) and 0 < len(text) <= _MAX_STOP_LENGTH for text in texts)
    ):
        _wrong(
            "stop",
            f"a text of at most {_MAX_STOP_LENGTH} characters, not empty, or a list of at most {_MAX_STOPS} of them",
        )
    return tuple(dict.fromkeys(texts))


def _ignored(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Names for a header, so nothing but letters, digits and a few marks."""
    unused = (name for name, value in extra.items() if value is not None and name not in _REFUSED)
    plain = ("".join(c for c in name[:_MAX_NAME] if c.isalnum() or c in "_-.") for name in unused)
    return tuple(sorted({name for name in plain if name.isascii() and name}))


def _wrong(path: str, expected: str) -> NoReturn:
    raise RequestError(f"{path}: expected {expected}", param=path)


def _request_error(error: ValidationError) -> RequestError:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    more = error.error_count() - 1
    also = f" (and {more} more)" if more else ""
    return RequestError(f"{path}: {problem['msg']}{also}", param=path)


def _json(value: object) -> str:
    return pydantic_core.to_json(value).decode()
