"""The items of a response, as OpenAI writes them."""

from __future__ import annotations

from typing import Any

from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.responses_items import ID_PREFIX


def reasoning_item(exchange: Exchange, text: str, status: str) -> dict[str, Any]:
    """An item of reasoning."""
    return {
        "id": f"rs_{_stem(exchange)}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": status,
    }


def message_item(
    exchange: Exchange, text: str, status: str, logprobs: list[dict[str, Any]]
) -> dict[str, Any]:
    """A message with its text."""
    return {
        "id": f"msg_{_stem(exchange)}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}],
    }


def call_item(  # noqa: PLR0917 - the fields of a call
    exchange: Exchange, index: int, call_id: str, name: str, arguments: str, status: str
) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": f"fc_{_stem(exchange)}-{index}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _stem(exchange: Exchange) -> str:
    return exchange.completion_id.removeprefix(ID_PREFIX)


def status_of(finish_reason: str) -> str:
    """The status of an answer that ended so."""
    return "incomplete" if finish_reason == "length" else "completed"
