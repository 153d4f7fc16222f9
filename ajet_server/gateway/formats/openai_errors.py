"""OpenAI's error object."""

from __future__ import annotations

from typing import Any

from ajet_core.errors import AjetError


def openai_error(error: AjetError) -> dict[str, Any]:
    """Return the body of an error; `code` is agentjet's error type, which OpenAI's SDKs show."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.type,
        }
    }
