"""Map routes to dialects, and write ``GET /v1/models`` for all SDKs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from ajet_server.gateway.formats.anthropic import AnthropicDialect
from ajet_server.gateway.formats.chat import ChatDialect
from ajet_server.gateway.formats.completions import CompletionsDialect
from ajet_server.gateway.formats.dialect import Dialect
from ajet_server.gateway.formats.google.content import (
    GenerateContentDialect,
    StreamContentDialect,
)
from ajet_server.gateway.formats.responses import ResponsesDialect


def models_list(model: dict[str, Any]) -> dict[str, Any]:
    """Return the list of models.

    :param model: its only one.
    """
    listed = {"first_id": model["id"], "last_id": model["id"], "has_more": False}
    return {"object": "list", "data": [model], **listed, "models": [model]}


def model_object(model_name: str, created: int, context: int | None) -> dict[str, Any]:
    """Return the description of the model, with the fields of each SDK.

    :param created: unix seconds.
    :param context: most tokens of a prompt with its answer; None if no model has been loaded yet.
    """
    limits = {} if context is None else {"inputTokenLimit": context, "outputTokenLimit": context}
    return {
        "id": model_name,
        "object": "model",
        "created": created,
        "owned_by": "agentjet",
        "type": "model",
        "display_name": model_name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "name": f"models/{model_name}",
        "displayName": model_name,
        **limits,
        "supportedGenerationMethods": [*CONTENT_METHODS, COUNT_METHOD],
    }


CHAT = ChatDialect()
MESSAGES = AnthropicDialect()
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": CompletionsDialect(),
    "/v1/messages": MESSAGES,
    "/v1/responses": ResponsesDialect(),
}
"""Dialects by path; requests have the episode's key in a header."""

CONTENT = GenerateContentDialect()
CONTENT_METHODS: dict[str, Dialect] = {
    "generateContent": CONTENT,
    "streamGenerateContent": StreamContentDialect(),
}
"""Google's dialects by the method that follows the model in the path."""

COUNT_METHOD = "countTokens"

GOOGLE_PREFIX = "/v1beta/"
"""Prefix of the paths that only Google's SDKs use."""

KEY_PREFIX = "/e/"
"""Prefix of paths whose second part is the episode's key, for programs whose key cannot change."""

KEY_PARAMETER = "key"
"""Query parameter with the episode's key, on the paths of `is_google_path`."""

_OURS = ("/v1/chat/", "/v1/models", "/v1/embeddings", GOOGLE_PREFIX)
_DOUBLED = re.compile(r"/v1(?=/v1(beta)?/)")
_CONTENT_PATH = re.compile(rf"{GOOGLE_PREFIX}|/v1/models/.*:[a-zA-Z]+$", re.DOTALL)


def is_llm_path(path: str) -> bool:
    """Whether `path` is a route for agents, whose requests have an episode's key."""
    return path.startswith((*_OURS, *DIALECTS, KEY_PREFIX)) or _DOUBLED.match(path) is not None


def is_google_path(path: str) -> bool:
    """Whether Google's SDKs send requests to `path`, which have the key also as a parameter."""
    return _CONTENT_PATH.match(_without_key(path)) is not None


def doubled_version(path: str) -> str:
    """Return advice if a path has the version twice, else ""."""
    if _DOUBLED.match(_without_key(path)) is None:
        return ""
    return (
        "the base_url already ends in /v1, and this program adds the version itself: give it the "
        "base_url without /v1"
    )


def dialect_of(path: str) -> Dialect:
    """Return the dialect for errors on an agents' path, OpenAI chat completions by default."""
    path = _DOUBLED.sub("", _without_key(path), count=1)
    if is_google_path(path):
        return CONTENT
    for known, dialect in DIALECTS.items():
        if path.startswith(known):
            return dialect
    return CHAT


def _without_key(path: str) -> str:
    if not path.startswith(KEY_PREFIX):
        return path
    _, _, path = path.removeprefix(KEY_PREFIX).partition("/")
    return f"/{path}"
