"""``GET /v1/models``, in a form that the SDKs of OpenAI and Anthropic both read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def models_list(model_name: str, created: int) -> dict[str, Any]:
    """The list of models.

    :param created: unix seconds.
    """
    listed = {"first_id": model_name, "last_id": model_name, "has_more": False}
    return {"object": "list", "data": [model_object(model_name, created)], **listed}


def model_object(model_name: str, created: int) -> dict[str, Any]:
    """The model.

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
