"""What calls of the three usual APIs may take at most, and what their answers took. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
_PARTS = frozenset({"image_url", "input_image", "image", "document", "file", "input_file"})
_ADDRESSES = ("url", "image_url", "file_url", "file_id")
_STORED = "item_reference"
_HOSTED = (
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution"),
    *("computer", "image_generation", "mcp"),
)
_ENDS = frozenset(
    {"message_stop", "response.completed", "response.incomplete", "response.failed"},
)
_MOST_CHOICES = 16
_LEAST_THOUGHT = 1024
_MOST_COUNT = 2**40


def bounded_call(
    path: str, body: Mapping[str, Any], model: str, most: int
) -> tuple[dict[str, Any], int]:
    """Return a call whose cost has a limit, and the tokens that its answers take at most.

    Tools that the endpoint would run itself are left out: they cost what no call says.

    :param path: one of `CALL_LIMITS`.
    :param model: that is asked, whatever the call names.
    :param most: tokens of an answer.
    :raises ValueError: what the call takes cannot be known before; the message says why.
    """
    for name in _REFERRING:
        if body.get(name):
            raise ValueError(f"{name!r} refers to what the call itself does not have")
    for name in ("messages", "input", "system"):
        _check_parts(body.get(name), 0)
    names = CALL_LIMITS[path]
    given = {name: body[name] for name in names if type(body.get(name)) is int}
    limit = max(1, min([most, *given.values()]))
    sent = {**body, "model": model, **dict.fromkeys(given or names[-1:], limit)}
    if isinstance(tools := body.get("tools"), list):
        sent["tools"] = [one for one in tools if not _is_hosted(one)]
        if not sent["tools"]:
            del sent["tools"]
            sent.pop("tool_choice", None)
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and type(its := thinking.get("budget_tokens")) is int:
        # An endpoint refuses thoughts that are longer than the answer may be.
        sent["thinking"] = {**thinking, "budget_tokens": min(its, limit - 1)}
        if limit <= _LEAST_THOUGHT:
            del sent["thinking"]
    if path == "chat/completions" and body.get("stream"):
        sent["stream_options"] = {"include_usage": True}
    choices = body.get("n") or 1
    if type(choices) is not int or not 0 < choices <= _MOST_CHOICES:
        raise ValueError(f"'n' is {choices!r:.40}, and may be from 1 to {_MOST_CHOICES}")
    return sent, limit * choices


def _check_parts(value: object, depth: int) -> None:
    if depth > 64:
        raise ValueError("the call is nested too deeply")
    if isinstance(value, list):
        for one in value:
            _check_parts(one, depth + 1)
    elif isinstance(value, dict):
        kind = value.get("type")
        is_part = isinstance(kind, str) and kind in _PARTS
        if kind == _STORED or (is_part and not all(map(_is_given, _addresses(value)))):
            raise ValueError(f"the part {kind!r} refers to what the call itself does not have")
        for one in value.values():
            _check_parts(one, depth + 1)


def _addresses(part: Mapping[str, Any]) -> Iterator[str]:
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _addresses(value)
        elif name in _ADDRESSES and isinstance(value, str):
            yield value


def _is_given(address: str) -> bool:
    return address.startswith("data:")


def _is_hosted(tool: object) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(_HOSTED)


def usage_of(content: bytes) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer that a whole answer states; None if it does not.

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
            return counts[prompt] + kept, counts[written]
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


def money_of(price: ResearcherPrice | None, prompt: int, written: int) -> float:
    """Return what tokens cost; 0 without a price."""
    return (prompt * price.input + written * price.output) / 1e6 if price else 0.0
