"""What calls of the three usual APIs may take at most, and what their answers took. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from ajet_research.study import ResearcherPrice

CALL_LIMITS: dict[str, tuple[str, ...]] = {
    "chat/completions": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}
"""By path of a call, the keys that may limit its answer. The last one is the usual one."""
OF_A_MESSAGE = 64
"""Tokens that a chat template may put round a message."""
_REFERRING = ("previous_response_id", "conversation", "prompt", "background", "container")
_COMMON = ("model", "stream", "temperature", "top_p", "top_k", "tools", "tool_choice", "metadata")
_OF_OPENAI = (
    *("parallel_tool_calls", "reasoning", "stream_options", "top_logprobs", "user"),
    *("prompt_cache_key", "safety_identifier"),
)
_PASSED = {
    "chat/completions": frozenset(
        (
            *(*_COMMON, *_OF_OPENAI, "messages", "n", "stop", "seed", "min_p", "functions"),
            *("function_call", "response_format", "reasoning_effort", "verbosity", "thinking"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
            *("logprobs", "chat_template_kwargs", "enable_thinking"),
        )
    ),
    "responses": frozenset(
        (
            *(*_COMMON, *_OF_OPENAI, "input", "instructions", "include", "text", "truncation"),
            *("client_metadata", "max_tool_calls"),
        )
    ),
    "messages": frozenset(
        (
            *(*_COMMON, "messages", "system", "stop_sequences", "thinking", "cache_control"),
            *("output_config", "output_format"),
        )
    ),
}
"""By path, what passes of a call. Anything else may have a price of its own, such as another tier
of the service, a fallback to another model, or a tool that the endpoint runs."""
_PARTS = frozenset(
    (
        *("message", "text", "input_text", "output_text", "refusal", "summary_text"),
        *("reasoning", "reasoning_text", "thinking", "redacted_thinking", "search_result"),
        *("tool_use", "tool_result", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output"),
    )
)
"""Those with all of their text. A small image or document may have more tokens than bytes."""
_INNER = ("content", "output", "summary")
_OWN_TOOLS = frozenset({None, "function", "custom"})
_KNOWN_TOOLS = ("local_shell", "apply_patch", "bash_", "text_editor_", "memory_")
"""Tools of the program, which the endpoint describes to the model."""
_OF_TOOLS = 1024
"""Tokens that an endpoint may put before tools, and for one that it describes itself."""
_FORMS: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")
"""Which tokenizers may make of a text, and which may be longer."""
_ENDS = frozenset(
    {"message_stop", "response.completed", "response.incomplete", "response.failed"},
)
_MESSAGES = 3
_MOST_DEPTH = 16
_MOST_CHOICES = 16
_LEAST_THOUGHT = 1024
_MOST_COUNT = 2**40


class BoundedCall(NamedTuple):
    """A call whose cost has a limit.

    :param sent: what may be sent.
    :param added: tokens of the prompt beyond those of its text, at most.
    :param written: tokens of its answers, at most.
    :param caches: whether the endpoint may write the prompt to a cache, at a price.
    """

    sent: dict[str, Any]
    added: int
    written: int
    caches: bool


def bounded_call(path: str, body: Mapping[str, Any], model: str, most: int) -> BoundedCall:
    """Return a call with a limit of its cost.

    Whatever may cost what no call says is left out, such as tools that the endpoint would run.

    :param path: one of `CALL_LIMITS`.
    :param model: that is asked, whatever the call names.
    :param most: tokens of an answer.
    :raises ValueError: what the call takes cannot be known before; the message says why.
    """
    for name in _REFERRING:
        if body.get(name):
            raise ValueError(f"{name!r} refers to what the call itself does not have")
    for name in ("messages", "input", "instructions", "system"):
        _check_parts(body.get(name), 0)
    names = CALL_LIMITS[path]
    given = {name: body[name] for name in names if type(body.get(name)) is int}
    limit = max(1, min([most, *given.values()]))
    sent = {name: value for name, value in body.items() if name in _PASSED[path]}
    sent |= {"model": model, **dict.fromkeys(given or names[-1:], limit)}
    added = OF_A_MESSAGE * _MESSAGES
    if body.get("tools"):
        sent["tools"] = tools = _own_tools(body["tools"])
        described = sum(tool.get("type") not in _OWN_TOOLS for tool in tools)
        added += _OF_TOOLS * (1 + described)
        if not tools:
            del sent["tools"]
            sent.pop("tool_choice", None)
    elif body.get("functions"):
        added += _OF_TOOLS
    thinking = sent.get("thinking")
    if isinstance(thinking, dict) and type(budget := thinking.get("budget_tokens")) is int:
        # An endpoint refuses thoughts that are longer than the answer may be.
        sent["thinking"] = {**thinking, "budget_tokens": min(budget, limit - 1)}
        if limit <= _LEAST_THOUGHT:
            del sent["thinking"]
    if path == "chat/completions" and body.get("stream"):
        sent["stream_options"] = {"include_usage": True}
    if path == "responses":
        # Another call could refer to what is stored, also by the id of a part.
        sent["store"] = False
    choices = sent.get("n") or 1
    if type(choices) is not int or not 0 < choices <= _MOST_CHOICES:
        raise ValueError(f"'n' is {choices!r:.40}, and may be from 1 to {_MOST_CHOICES}")
    return BoundedCall(sent, added, limit * choices, '"cache_control"' in json.dumps(sent))


def most_tokens(text: str) -> int:
    """Return the most tokens that a text has: a token has at least one byte."""
    return max(len(text.encode()), *(len(normalize(form, text).encode()) for form in _FORMS))


def _check_parts(value: object, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise ValueError("the call is nested too deeply")
    if isinstance(value, dict):
        value = [value]
    for one in value if isinstance(value, list) else ():
        if not isinstance(one, dict):
            continue
        kind = one.get("type", "message" if "role" in one else None)
        if not isinstance(kind, str) or kind not in _PARTS or one.get("audio"):
            raise ValueError(
                f"the part {_kind(one, kind)!r:.40} refers to more than the text of the call"
            )
        for name in _INNER:
            _check_parts(one.get(name), depth + 1)


def _kind(part: Mapping[str, Any], kind: object) -> object:
    return "audio" if part.get("audio") else kind


def _own_tools(tools: object) -> list[dict[str, Any]]:
    """Return the tools that the program runs itself.

    :raises ValueError: they are not a list.
    """
    if not isinstance(tools, list):
        raise ValueError("'tools' is not a list")
    own = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else ""
        if kind == "namespace":
            if inner := _own_tools(tool.get("tools") or []):
                own.append({**tool, "tools": inner})
            continue
        known = isinstance(kind, str) and (kind in _OWN_TOOLS or kind.startswith(_KNOWN_TOOLS))
        if known or (kind is None and isinstance(tool.get("name"), str)):
            own.append(tool)
    return own


class CallUsage(NamedTuple):
    """Tokens of a call.

    :param cached: those of the prompt that were written to a cache.
    """

    prompt: int
    written: int
    cached: int = 0


def usage_of(content: bytes) -> CallUsage | None:
    """Return the tokens that a whole answer states; None if it does not.

    :param content: a JSON object, or a stream of server-sent events. One that was cut states
        nothing: it may have taken more than it had said by then.
    """
    counts: dict[str, int] = {}
    ended = False
    for answer in _objects(content):
        ended = ended or answer is _DONE or answer.get("type") in _ENDS
        for part in (answer, answer.get("message"), answer.get("response")):
            usage = part.get("usage") if isinstance(part, dict) else None
            for name, count in usage.items() if isinstance(usage, dict) else ():
                if type(count) is int and 0 <= count < _MOST_COUNT:
                    counts[name] = max(count, counts.get(name, 0))
    # A stream has many objects, a JSON answer is one.
    if not ended and not content.lstrip().startswith(b"{"):
        return None
    for prompt, written in (("prompt_tokens", "completion_tokens"), _OF_INPUT):
        if prompt in counts and written in counts:
            kept = sum(counts.get(name, 0) for name in _CACHED) if prompt == _OF_INPUT[0] else 0
            # Some endpoints count thoughts in the total alone.
            most = max(counts[written], counts.get("total_tokens", 0) - counts[prompt] - kept)
            return CallUsage(counts[prompt] + kept, most, counts.get(_CACHED[0], 0))
    return None


_OF_INPUT = ("input_tokens", "output_tokens")
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""Parts of a prompt that Anthropic's API counts apart."""
_DONE: dict[str, Any] = {}


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    texts = [content]
    if not content.lstrip().startswith(b"{"):
        lines = content.splitlines()
        texts = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    for text in texts:
        if text == b"[DONE]":
            yield _DONE
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def money_of(price: ResearcherPrice | None, prompt: int, written: int, cached: int = 0) -> float:
    """Return what tokens cost at most; 0 without a price.

    :param cached: those of the prompt that were written to a cache, which costs up to twice.
    """
    return ((prompt + cached) * price.input + written * price.output) / 1e6 if price else 0.0
