"""Error responses of the OpenAPI document."""

from __future__ import annotations

from ajet_core.protocol import ErrorBody

Responses = dict[int | str, dict[str, object]]

ERRORS: Responses = {
    "4XX": {
        "model": ErrorBody,
        "description": "The request is invalid or not allowed; the error gives the reason.",
    },
    "5XX": {"model": ErrorBody, "description": "The server cannot process the request now."},
}
"""Responses of every route."""

REFUSED: Responses = {
    400: {
        "model": ErrorBody,
        "description": "Some values are not supported by this server or contradict each other.",
    }
}
"""Responses of routes that refuse some values that their schemas allow."""

ENDED: Responses = {410: {"model": ErrorBody, "description": "The episode has ended."}}
"""Responses of routes that need an open episode."""
