"""Map routes to dialects, and write ``GET /v1/models`` for the SDKs of OpenAI and Anthropic."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ajet_server.gateway.formats.anthropic import AnthropicDialect
from ajet_server.gateway.formats.chat import ChatDialect
from ajet_server.gateway.formats.completions import CompletionsDialect
from ajet_server.gateway.formats.dialect import Dialect
from ajet_server.gateway.formats.responses import ResponsesDialect


def models_list(model_name: str, created: int) -> dict[str, Any]:
    """Return the list of models.

    :param created: unix seconds.
    """
    listed = {"first_id": model_name, "last_id": model_name, "has_more": False}
    return {"object": "list", "data": [model_object(model_name, created)], **listed}


def model_object(model_name: str, created: int) -> dict[str, Any]:
    """Return the description of the model.

    :param created: unix seconds.
    """
    return {
        "id": model_name,
        "object": "model",
        "created": created,
        "owned_by": "agentjet",
        "type": "model",
        "display_name": model_name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
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

KEY_PREFIX = "/e/"
"""Prefix of paths whose second part is the episode's key, for programs whose key cannot change."""

_OURS = ("/v1/chat/", "/v1/models", "/v1/embeddings")


def is_llm_path(path: str) -> bool:
    """Whether `path` is a route for agents, whose requests have an episode's key."""
    return path.startswith((*_OURS, *DIALECTS, KEY_PREFIX))


def dialect_of(path: str) -> Dialect:
    """Return the dialect for errors on an agents' path, OpenAI chat completions by default."""
    if path.startswith(KEY_PREFIX):
        _, _, path = path.removeprefix(KEY_PREFIX).partition("/")
        path = f"/{path}"
    for known, dialect in DIALECTS.items():
        if path.startswith(known):
            return dialect
    return CHAT
