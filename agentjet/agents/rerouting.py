"""Recognise model calls among HTTP requests, and rewrite them for the episode's endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from ajet_core.interfaces import ModelEndpoint

AGENT_HEADER = "x-ajet-agent"

_DIALECTS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "/chat/completions": (frozenset({"messages"}), frozenset()),
    "/completions": (frozenset({"prompt"}), frozenset()),
    "/responses": (frozenset({"model"}), frozenset({"input", "previous_response_id", "prompt"})),
    "/v1/messages": (frozenset({"model", "messages"}), frozenset()),
    "/v1/messages/count_tokens": (frozenset({"model", "messages"}), frozenset()),
}
"""Path endings of model calls, with the keys that their bodies must have and the keys of which they
must have at least one. Other requests, such as those of tools, are not rerouted."""

_GOOGLE = re.compile(r"(/models/([^/]+):(generateContent|streamGenerateContent|countTokens))$")
"""Path endings of model calls in Google's dialect, which have the model in the path."""

_STRANGE = re.compile(
    r"(/api/chat|/responses/compact|/v1/complete|/v2/chat"
    r"|/model/[^/]+/(converse|converse-stream|invoke|invoke-with-response-stream))$"
)
"""Path endings of model calls in dialects that the server does not support: Ollama, Bedrock, Cohere
and others."""

_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/")
_KEPT = (
    "accept",
    "anthropic-",
    "content-type",
    "idempotency-key",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-ajet-",
    "x-stainless-",
)
"""Prefixes of the names of headers that describe the call. All others are dropped, because they may
hold secrets for the original endpoint."""
_LONGEST_NAME = 256

_EPISODE_KEY = re.compile(r"ajet-ep-[^/\s]+")
"""Matches the keys of episodes."""
_KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")


@dataclass(frozen=True, slots=True)
class HttpModelCall:
    """A request to a model.

    :param path: the path after the base URL.
    :param model: the requested model.
    :param query: the part of the query that belongs to the dialect.
    """

    path: str
    model: str
    body: dict[str, Any]
    query: str = ""

    @property
    def is_google(self) -> bool:
        """Whether it is in Google's dialect, which has no model and no sampling in the body."""
        return _GOOGLE.search(self.path) is not None

    @property
    def is_count(self) -> bool:
        """Whether it only counts tokens."""
        return self.path.endswith(_COUNTING)

    @property
    def system_prompt(self) -> str:
        """The system prompt, in whichever dialect; "" if there is none."""
        said = [self.body.get("system"), self.body.get("instructions")]
        instruction = self.body.get("systemInstruction")
        said.append(instruction.get("parts") if isinstance(instruction, dict) else instruction)
        messages = self.body.get("messages") or self.body.get("input")
        if isinstance(messages, list):
            said += [
                message.get("content")
                for message in messages
                if isinstance(message, dict) and message.get("role") in _SYSTEM
            ]
        return "\n".join(text for content in said for text in _texts(content))


_COUNTING = ("/messages/count_tokens", ":countTokens")
_SYSTEM = frozenset({"system", "developer"})


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


@dataclass(frozen=True, slots=True)
class Rerouted:
    """The request that is sent instead of a model call."""

    url: str
    headers: list[tuple[str, str | bytes]]
    content: bytes


def may_be_model_call(method: str, path: str) -> bool:
    """Return whether a request may be a model call, so that its body must be read."""
    return method == "POST" and (
        path.endswith(tuple(_DIALECTS)) or _GOOGLE.search(path) is not None
    )


def read_model_call(
    method: str, path: str, content: bytes, query: str = ""
) -> HttpModelCall | None:
    """Parse a request as a model call; None if it is not one.

    :param query: the request's query, without the question mark.
    """
    if not may_be_model_call(method, path):
        return None
    try:
        body = json.loads(content)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    google = _GOOGLE.search(path)
    return _google_call(google, body, query) if google is not None else _body_call(path, body)


def _google_call(path: re.Match[str], body: dict[str, Any], query: str) -> HttpModelCall | None:
    if not body.keys() & {"contents", "generateContentRequest"}:
        return None
    form = parse_qs(query).get("alt")
    return HttpModelCall(path[1], path[2], body, f"?{urlencode({'alt': form[0]})}" if form else "")


def _body_call(path: str, body: dict[str, Any]) -> HttpModelCall | None:
    """Parse a request of a dialect that has the model in the body."""
    ending = next(ending for ending in _DIALECTS if path.endswith(ending))
    needed, one_of = _DIALECTS[ending]
    if not body.keys() >= needed or (one_of and not body.keys() & one_of):
        return None
    # Azure puts the model in the path.
    deployment = _DEPLOYMENT.search(path)
    model = body.get("model") or (deployment[1] if deployment else None)
    if model is None:
        return None
    return HttpModelCall(ending.removeprefix("/v1"), str(model), body)


def is_unsupported_route(method: str, path: str) -> bool:
    """Return whether a request's path is that of a model call in an unsupported dialect."""
    return method == "POST" and _STRANGE.search(path) is not None


def episode_key(path: str, headers: Mapping[str, str]) -> str | None:
    """Return the episode key in a request's path or headers, or None if there is none.

    :param headers: a mapping with case-insensitive names.
    """
    for text in (path, *(headers.get(name, "") for name in _KEY_HEADERS)):
        if (match := _EPISODE_KEY.search(text)) is not None:
            return match.group()
    return None


def reroute(
    call: HttpModelCall,
    content: bytes,
    headers: Iterable[tuple[str, str]],
    endpoint: ModelEndpoint,
    *,
    agent: str | None,
    sampling: Mapping[str, Any],
) -> Rerouted:
    """Build the request to send to `endpoint` instead.

    :param content: the body of `call`, sent unchanged unless `sampling` changes it or it has no
        model.
    :param agent: the calling agent, unless the request's headers name one.
    """
    kept: list[tuple[str, str | bytes]] = [
        (name, value) for name, value in headers if name.lower().startswith(_KEPT)
    ]
    kept.append(("authorization", f"Bearer {endpoint.api_key}"))
    if agent and not any(name.lower() == AGENT_HEADER for name, _ in kept):
        # As bytes, because names need not be ASCII.
        clean = "".join(c if c.isprintable() else " " for c in agent)
        kept.append(
            (AGENT_HEADER, " ".join(clean.split())[:_LONGEST_NAME].encode(errors="replace"))
        )
    if call.is_google:
        if sampling:
            config = call.body.get("generationConfig")
            given = config if isinstance(config, dict) else {}
            named = {_GOOGLE_NAMES.get(name, name): value for name, value in sampling.items()}
            changed = {**call.body, "generationConfig": _overridden(given, named)}
            content = json.dumps(changed).encode()
    elif sampling or not call.body.get("model"):
        body = {**call.body, "model": call.model}
        content = json.dumps(_overridden(body, sampling)).encode()
    return Rerouted(endpoint.base_url + call.path + call.query, kept, content)


_GOOGLE_NAMES = {
    "frequency_penalty": "frequencyPenalty",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "max_tokens": "maxOutputTokens",
    "presence_penalty": "presencePenalty",
    "stop": "stopSequences",
    "top_k": "topK",
    "top_p": "topP",
}
"""Google's names of parameters."""


def _overridden(body: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    changed = {**body, **sampling}
    return {name: value for name, value in changed.items() if sampling.get(name, ...) is not None}
