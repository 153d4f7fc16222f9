"""The OpenAPI document, and the error responses that routes add to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from ajet_core import __version__
from ajet_core.protocol import ErrorBody
from ajet_server.gateway.formats.table import is_llm_path
from ajet_server.http.auth_middleware import OPEN_PATHS
from ajet_server.http.deprecated import mark_deprecated
from ajet_server.http.llm_routes import OPENAPI_PATHS

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

_SECRETS = {
    "token": "A control, client or view token; docs/security.md lists what each may access.",
    "episode_key": "The api_key of an episode.",
}


def openapi_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of a server with these routes.

    The models of the protocol describe the routes of the protocol, and `OPENAPI_PATHS` those of
    agents.
    """
    document = get_openapi(
        title="agentjet swarm server",
        version=__version__,
        description="The swarm protocol, version 1.",
        routes=routes,
    )
    document["paths"].update(OPENAPI_PATHS)
    document["components"]["securitySchemes"] = {
        name: {"type": "http", "scheme": "bearer", "description": description}
        for name, description in _SECRETS.items()
    }
    for path, operations in document["paths"].items():
        opened_by = "episode_key" if is_llm_path(path) else "token"
        for operation in operations.values():
            operation["security"] = [] if path in OPEN_PATHS else [{opened_by: []}]
    mark_deprecated(document)
    return document
