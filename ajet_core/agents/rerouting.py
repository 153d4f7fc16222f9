"""Which requests are model calls, and what becomes of them on their way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ajet_core.interfaces import ModelEndpoint

AGENT_HEADER = "x-ajet-agent"

_DIALECTS: dict[str, frozenset[str]] = {
    "/chat/completions": frozenset({"model", "messages"}),
    "/completions": frozenset({"model", "prompt"}),
    "/responses": frozenset({"model", "input"}),
    "/v1/messages": frozenset({"model", "messages"}),
    "/v1/messages/count_tokens": frozenset({"model", "messages"}),
}
"""How the paths of model calls end, and what their bodies have: other requests, such as those of tools, pass by."""

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
"""How the names of headers begin that are about the call. All others may be about the endpoint for which it was meant: its
secrets go to nobody else."""
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request that asks a model for something.

    :param path: what follows the base URL.
    """

    path: str
    body: dict[str, Any]

    @property
    def model(self) -> str:
        """The model that it asks for."""
        return str(self.body["model"])

    @property
    def system_prompt(self) -> str:
        """What it tells the model of who it is, in whichever dialect; "" if it says nothing."""
        said = [self.body.get("system"), self.body.get("instructions")]
        messages = self.body.get("messages") or self.body.get("input")
        if isinstance(messages, list):
            said += [
                message.get("content")
                for message in messages
                if isinstance(message, dict) and message.get("role") in _SYSTEM
            ]
        return "\n".join(text for content in said for text in _texts(content))


_SYSTEM = frozenset({"system", "developer"})


def _texts(content: Any) -> Iterator[str]:
    """The texts of a message's content: a string, or parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


@dataclass(frozen=True, slots=True)
class Rerouted:
    """What is sent instead of a model call."""

    url: str
    headers: list[tuple[str, str | bytes]]
    content: bytes


def may_be_model_call(method: str, path: str) -> bool:
    """Whether it is worth reading a request's body."""
    return method == "POST" and path.endswith(tuple(_DIALECTS))


def read_model_call(method: str, path: str, content: bytes) -> ModelCall | None:
    """The model call that a request is; None if it is something else."""
    if method != "POST":
        return None
    ending = next((ending for ending in _DIALECTS if path.endswith(ending)), None)
    if ending is None:
        return None
    try:
        body = json.loads(content)
    except ValueError:
        return None
    if not isinstance(body, dict) or not body.keys() >= _DIALECTS[ending]:
        return None
    return ModelCall(ending.removeprefix("/v1"), body)


def reroute(
    call: ModelCall,
    content: bytes,
    headers: Iterable[tuple[str, str]],
    endpoint: ModelEndpoint,
    *,
    agent: str | None,
    sampling: Mapping[str, Any],
) -> Rerouted:
    """The request that goes to `endpoint` instead.

    :param content: the body of `call`, which is sent as it is unless `sampling` changes it.
    :param agent: who calls, unless the request says so itself.
    """
    kept: list[tuple[str, str | bytes]] = [
        (name, value) for name, value in headers if name.lower().startswith(_KEPT)
    ]
    kept.append(("authorization", f"Bearer {endpoint.api_key}"))
    if agent and not any(name.lower() == AGENT_HEADER for name, _ in kept):
        # As bytes: names need not be ASCII.
        clean = "".join(c if c.isprintable() else " " for c in agent)
        kept.append(
            (AGENT_HEADER, " ".join(clean.split())[:_LONGEST_NAME].encode(errors="replace"))
        )
    if sampling:
        content = json.dumps(_overridden(call.body, sampling)).encode()
    return Rerouted(endpoint.base_url + call.path, kept, content)


def _overridden(body: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    changed = {**body, **sampling}
    return {name: value for name, value in changed.items() if sampling.get(name, ...) is not None}
