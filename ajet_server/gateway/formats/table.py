"""Which dialect is spoken where."""

from __future__ import annotations

from ajet_server.gateway.formats.anthropic import AnthropicDialect
from ajet_server.gateway.formats.chat import ChatDialect
from ajet_server.gateway.formats.completions import CompletionsDialect
from ajet_server.gateway.formats.dialect import Dialect
from ajet_server.gateway.formats.responses import ResponsesDialect

CHAT = ChatDialect()
MESSAGES = AnthropicDialect()
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": CompletionsDialect(),
    "/v1/messages": MESSAGES,
    "/v1/responses": ResponsesDialect(),
}
"""By path, with an episode's key in a header."""

KEY_PREFIX = "/e/"
"""Paths that begin with it have the key of the episode as their second part, for programs whose key cannot change."""

_OURS = ("/v1/chat/", "/v1/models", "/v1/embeddings")


def is_llm_path(path: str) -> bool:
    """Whether it is a path of agents, whose requests have an episode's key."""
    return path.startswith((*_OURS, *DIALECTS, KEY_PREFIX))


def dialect_of(path: str) -> Dialect:
    """The dialect in which whoever asks at a path of agents expects errors: OpenAI's, where nothing else is known."""
    if path.startswith(KEY_PREFIX):
        _, _, path = path.removeprefix(KEY_PREFIX).partition("/")
        path = f"/{path}"
    for known, dialect in DIALECTS.items():
        if path.startswith(known):
            return dialect
    return CHAT
