"""The dialects of ``generateContent`` and ``streamGenerateContent``, and Google's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet_core.errors import AjetError, ContextLengthError, UnsupportedError
from ajet_server.gateway.formats.bodies import object_text
from ajet_server.gateway.formats.dialect import Dialect, event
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.google.reading import read_count_request, read_generate_request
from ajet_server.gateway.formats.google.writing import (
    ARRAY_HEARTBEAT,
    HEARTBEAT,
    GenerateContentRequest,
)
from ajet_server.gateway.formats.request import ModelRequest

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    410: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# Names of this dialect for fields that errors of the engine and the renderer name.
_FIELDS = {
    "frequency_penalty": "generationConfig.frequencyPenalty",
    "messages": "contents",
    "presence_penalty": "generationConfig.presencePenalty",
    "seed": "generationConfig.seed",
    "top_logprobs": "generationConfig.logprobs",
}
_DETAIL = "type.googleapis.com/google.rpc."


class GenerateContentDialect(Dialect):
    """``POST /v1beta/models/MODEL:generateContent``."""

    summary = "Google generateContent"
    heartbeat = HEARTBEAT

    def chosen(self, query: Mapping[str, str]) -> Dialect:
        """Return this dialect; ``alt`` decides the form of streams only."""
        form = query.get("alt", "json")
        if form not in ("json", "sse"):
            raise UnsupportedError(
                f"alt: {form[:40]!r} is not supported: leave it out", param="alt"
            )
        return self

    def read(self, body: bytes, session: Session) -> GenerateContentRequest:
        """Parse a body."""
        return GenerateContentRequest(*read_generate_request(body, session))

    def read_to_count(self, body: bytes, session: Session) -> ModelRequest:
        """Parse a body whose tokens are to be counted."""
        return read_count_request(body, session)

    def error(self, error: AjetError) -> dict[str, Any]:
        """Return Google's error object, whose details name the field."""
        status = _STATUSES.get(error.status)
        if status is None:
            status = "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL"
        field = _FIELDS.get(error.param or "", error.param)
        message = _message_of(error, field)
        details: list[dict[str, Any]] = [
            {"@type": f"{_DETAIL}ErrorInfo", "reason": error.type.upper(), "domain": "agentjet"}
        ]
        if field:
            violation = {"field": field, "description": message}
            details.append({"@type": f"{_DETAIL}BadRequest", "fieldViolations": [violation]})
        if error.retry_after is not None:
            delay = f"{error.retry_after:g}s"
            details.append({"@type": f"{_DETAIL}RetryInfo", "retryDelay": delay})
        described = {"code": error.status, "message": message, "status": status}
        return {"error": {**described, "details": details}}

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """Return an error object as an event, on which the SDK raises."""
        return event(object_text(self.error(error)))


class StreamContentDialect(GenerateContentDialect):
    """``POST /v1beta/models/MODEL:streamGenerateContent?alt=sse``."""

    summary = "Google generateContent as a stream"

    def chosen(self, query: Mapping[str, str]) -> Dialect:
        """Return the dialect of events for ``alt=sse``, else that of an array."""
        super().chosen(query)
        return self if query.get("alt") == "sse" else _ARRAY

    def read(self, body: bytes, session: Session) -> GenerateContentRequest:
        """Parse a body."""
        return GenerateContentRequest(*read_generate_request(body, session, stream=True))


class ArrayContentDialect(StreamContentDialect):
    """``POST /v1beta/models/MODEL:streamGenerateContent``, whose stream is a JSON array."""

    heartbeat = ARRAY_HEARTBEAT
    stream_type = "application/json"

    def read(self, body: bytes, session: Session) -> GenerateContentRequest:
        """Parse a body."""
        request, with_thoughts = read_generate_request(body, session, stream=True)
        return GenerateContentRequest(request, with_thoughts, is_array=True)

    def error_event(self, error: AjetError, position: int) -> bytes:
        """Return an error object as the last element of the array."""
        return (b",\n" if position else b"[") + object_text(self.error(error)) + b"]"


_ARRAY = ArrayContentDialect()


def _message_of(error: AjetError, field: str | None) -> str:
    """Return the error's message, with the field's name in this dialect.

    For a prompt that is too long it has Google's wording, by which programs recognise the error.
    """
    if isinstance(error, ContextLengthError) and error.prompt_tokens is not None:
        # An answer needs at least one token.
        most = (error.max_context or 0) - 1
        return (
            f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens "
            f"allowed ({most})."
        )
    if error.param and field and error.message.startswith(error.param):
        return field + error.message.removeprefix(error.param)
    return error.message
