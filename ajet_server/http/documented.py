"""What the OpenAPI document says of refusals."""

from __future__ import annotations

from ajet_core.protocol import ErrorBody

Responses = dict[int | str, dict[str, object]]

ERRORS: Responses = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be served; the error says why."},
    "5XX": {"model": ErrorBody, "description": "The server cannot serve it now."},
}
"""Of every route."""

REFUSED: Responses = {
    400: {"model": ErrorBody, "description": "Its values do not fit this server or each other."}
}
"""Of routes that refuse what their schemas allow."""

ENDED: Responses = {410: {"model": ErrorBody, "description": "The episode has ended."}}
"""Of routes about an open episode."""
