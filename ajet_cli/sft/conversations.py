"""Conversations of a dataset as model calls, in the tokens that the model's template writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ajet_core.errors import AjetError, RequestError
from ajet_core.timeline import Call
from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.rendering.renderer import ChatRenderer

UNKNOWN_LOGPROB = -60.0
"""The logprob of tokens that no policy sampled: less than any policy gives them."""

_FORMS = (
    "expected the field messages (and tools), as in chat completions, or the fields prompt and "
    "completion, each a string or a list of messages"
)


def read_conversations(rows: Iterable[Any], renderer: ChatRenderer) -> Iterator[list[Call]]:
    """Yield the calls of each row: one for each answer that is to be learnt.

    :param rows: objects with ``messages`` or with ``prompt`` and ``completion``.
    :raises RequestError: a row has another form, or the template cannot write it; the message has
        the number of the row.
    """
    for number, row in enumerate(rows, 1):
        try:
            yield _calls(f"row-{number}", row, renderer)
        except AjetError as error:
            raise RequestError(f"row {number}: {error.message}", param=error.param) from error


def _calls(name: str, row: Any, renderer: ChatRenderer) -> list[Call]:
    if not isinstance(row, Mapping):
        raise RequestError(f"it is not an object: {_FORMS}")
    prompt, completion = row.get("prompt"), row.get("completion")
    if row.get("messages") is not None:
        bodies = row["messages"]
    elif isinstance(prompt, str) and isinstance(completion, str):
        if not prompt:
            raise RequestError("prompt is empty: the first token of a text cannot be trained")
        answer = [*renderer.encode(completion), *renderer.stop_token_ids[:1]]
        return [_call(name, [], renderer.encode(prompt), answer)]
    elif isinstance(prompt, list) and isinstance(completion, list):
        # The answers in the prompt are given, not trained.
        bodies = [*({**_object(message), "weight": 0} for message in prompt), *completion]
    else:
        raise RequestError(_FORMS)
    if not isinstance(bodies, list):
        raise RequestError(_FORMS)
    return _conversation(name, bodies, row.get("tools") or [], renderer)


def _conversation(
    name: str, messages: Sequence[Any], tools: Any, renderer: ChatRenderer
) -> list[Call]:
    bodies = [_plain(_object(message)) for message in messages]
    try:
        text = json.dumps({"messages": bodies, "tools": tools})
    except (TypeError, ValueError) as error:
        raise RequestError(f"it cannot be written as JSON: {error}") from error
    request = read_chat_request(text.encode())
    calls: list[Call] = []
    for place, (body, message) in enumerate(zip(bodies, request.messages, strict=True)):
        weight = body.get("weight", 1)
        if weight not in {0, 1}:
            raise RequestError(f"messages[{place}].weight is {weight!r}; it must be 0 or 1")
        if message.role != "assistant" or not weight:
            continue
        before = request.messages[:place]
        if not before:
            raise RequestError("messages[0] is an answer, with nothing before it")
        prompt = renderer.render(before, request.tools).ids
        written = renderer.render(request.messages[: place + 1], request.tools, asking=False).ids
        if written[: len(prompt)] != prompt:
            raise RequestError(
                f"messages[{place}]: the template does not write this answer after the prompt that "
                "asks for it, so a model could not learn to give it; check model.renderer"
            )
        answer = written[len(prompt) :]
        if sum(token_id in renderer.stop_token_ids for token_id in answer) > 1:
            raise RequestError(
                f"messages[{place}]: the answer contains the text of a token that ends answers"
            )
        calls.append(_call(name, calls, prompt, _until_stop(answer, renderer)))
    if not calls:
        raise RequestError("it has no message of the role assistant that is to be trained")
    return calls


def _object(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("a message is not an object")
    return message


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty fields, and with arguments as JSON text.

    Tables have every field in every row. Many datasets store arguments as objects.
    """
    plain = {name: value for name, value in message.items() if value is not None}
    plain.setdefault("content", None)
    calls = plain.get("tool_calls")
    return {**plain, "tool_calls": [_with_text(call) for call in calls]} if calls else plain


def _with_text(call: Any) -> Any:
    """Return a tool call with arguments as JSON text, if they are an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _until_stop(answer: Sequence[int], renderer: ChatRenderer) -> list[int]:
    """Return an answer up to its stop token, as the model has to sample it."""
    for place, token_id in enumerate(answer):
        if token_id in renderer.stop_token_ids:
            return list(answer[: place + 1])
    return [*answer, *renderer.stop_token_ids[:1]]


def _call(name: str, before: Sequence[Call], prompt: Sequence[int], answer: list[int]) -> Call:
    base = before[-1] if before else None
    shared = 0 if base is None else common_prefix(base.token_ids, list(prompt), 0)
    return Call(
        call_id=f"{name}-{len(before)}",
        episode_id=name,
        index=len(before),
        suffix_ids=list(prompt[shared:]),
        sampled_ids=answer,
        logprobs=[UNKNOWN_LOGPROB] * len(answer),
        policy_versions=[0] * len(answer),
        temperature=1.0,
        finish_reason="stop",
        base=base if shared else None,
        shared=shared,
    )
