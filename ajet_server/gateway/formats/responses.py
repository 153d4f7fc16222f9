"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.errors import AjetError, ContextLengthError
from ajet_server.gateway.formats.answer import random_hex
from ajet_server.gateway.formats.dialect import Asked, Dialect, event
from ajet_server.gateway.formats.events import Choice
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.json_text import object_text
from ajet_server.gateway.formats.openai_errors import openai_error
from ajet_server.gateway.formats.responses_items import ID_PREFIX
from ajet_server.gateway.formats.responses_json import (
    call_item,
    message_item,
    reasoning_item,
    status_of,
)
from ajet_server.gateway.formats.responses_request import ResponsesBody, read_responses_request
from ajet_server.gateway.formats.responses_stream import ResponseWriter
from ajet_server.gateway.formats.token_spans import Spans


class ResponsesDialect(Dialect):
    """``POST /v1/responses``."""

    summary = "OpenAI responses"

    def read(self, body: bytes, session: Session) -> AskedResponse:
        """Understand a body, and the conversation that it goes on from."""
        return AskedResponse(*read_responses_request(body, session))

    def error(self, error: AjetError) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": _error(error)}

    def error_event(self, error: AjetError, position: int) -> bytes:
        """The SDK hands it on, as it does those of OpenAI."""
        told = {"code": error.type, "message": error.message, "param": error.param}
        return event(object_text({"type": "error", "sequence_number": position, **told}), "error")


@dataclass(frozen=True, slots=True)
class AskedResponse(Asked):
    """A request for a response.

    :param body: what of it the response repeats.
    """

    body: ResponsesBody

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """A ``response``."""
        (choice,) = choices
        spans = Spans(choice.generation, exchange.request.tools)
        items = _items(exchange, choice, spans)
        return object_text(self.complete(exchange, choice, items, spans))

    def writer(self, exchange: Exchange) -> ResponseWriter:
        """From ``response.created`` to ``response.completed``."""
        return ResponseWriter(self, exchange)

    def begun(self, exchange: Exchange) -> dict[str, Any]:
        """A response without any items yet."""
        return self._response(exchange, "in_progress", [])

    def too_long(self, error: ContextLengthError, model_name: str, now: float) -> bytes:
        """A response that failed: programs compact their conversation on this event, and give up on a status."""
        told = _error(error)
        common = {
            "id": f"{ID_PREFIX}{random_hex(12)}",
            "created_at": int(now),
            "model": model_name,
            "output": [],
        }
        events: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": self._common("in_progress") | common}),
            ("error", {"error": told}),
            ("response.failed", {"response": self._common("failed") | common | {"error": told}}),
        ]
        return b"".join(
            event(object_text({"type": name, "sequence_number": i, **content}), name)
            for i, (name, content) in enumerate(events)
        )

    def complete(
        self, exchange: Exchange, choice: Choice, items: list[dict[str, Any]], spans: Spans
    ) -> dict[str, Any]:
        """A response with all of its items."""
        response = self._response(exchange, status_of(choice.finish_reason), items)
        if choice.finish_reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        reasoned = spans.reasoning() if choice.answer.reasoning else 0
        prompt, sampled = len(exchange.prompt.ids), len(choice.generation.sampled_ids)
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": prompt + sampled,
        }
        return response

    def _response(
        self, exchange: Exchange, status: str, items: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": exchange.completion_id,
            "created_at": int(exchange.created_at),
            "model": exchange.model_name,
            "output": items,
            **self._common(status),
        }

    def _common(self, status: str) -> dict[str, Any]:
        """What a response repeats of its request, and what all of them have."""
        body, request = self.body, self.request
        return {
            "object": "response",
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": body.store is not False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}, **_given(body.text)},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
        }


def _items(exchange: Exchange, choice: Choice, spans: Spans) -> list[dict[str, Any]]:
    answer, status = choice.answer, status_of(choice.finish_reason)
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        items.append(reasoning_item(exchange, answer.reasoning, "completed"))
    if answer.content or not answer.tool_calls:
        logprobs = spans.more_text(answer.content) if exchange.request.logprobs else []
        items.append(message_item(exchange, answer.content, status, logprobs))
    items += [
        call_item(exchange, i, call.id, call.name, call.arguments, status)
        for i, call in enumerate(answer.tool_calls)
    ]
    return items


def _error(error: AjetError) -> dict[str, Any]:
    """OpenAI's error object; of a prompt that is too long in its words, which programs look for to compact."""
    told: dict[str, Any] = openai_error(error)["error"]
    if isinstance(error, ContextLengthError):
        told["message"] = f"Your input exceeds the context window of this model. {error.message}"
    return told


def _given(text: dict[str, Any] | None) -> dict[str, Any]:
    """The settings of the text that were set."""
    return {name: value for name, value in (text or {}).items() if value is not None}
