"""The OpenAPI document, and the error responses that routes add to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from starlette.routing import BaseRoute

from ajet_core import __version__
from ajet_core.protocol import ErrorBody
from ajet_server.gateway.formats.table import is_llm_path
from ajet_server.http.auth_middleware import OPEN_PATHS
from ajet_server.http.deprecated import mark_deprecated
from ajet_server.http.json_route import JsonRoute, Responses
from ajet_server.http.llm_routes import OPENAPI_PATHS

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
    described = [route for route in routes if isinstance(route, JsonRoute)]
    schemas = _Schemas(described)
    paths: dict[str, Any] = {}
    for route in described:
        paths.setdefault(route.path_format, {})[route.method.lower()] = _operation(route, schemas)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "agentjet swarm server",
            "version": __version__,
            "description": "The swarm protocol, version 1.",
        },
        "paths": paths,
        "components": {"schemas": schemas.definitions},
    }
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


class _Schemas:
    """JSON schemas of the models that routes take as bodies and return.

    :ivar definitions: what the schemas refer to, by name.
    """

    def __init__(self, routes: Sequence[JsonRoute]) -> None:
        kinds: dict[tuple[Any, JsonSchemaMode], None] = {}
        for route in routes:
            if route.body is not None:
                kinds[route.body.kind, "validation"] = None
            answers = (one.get("model") for one in route.description.responses.values())
            for answer in (route.description.model, *answers):
                if answer is not None:
                    kinds[answer, "serialization"] = None
        generator = GenerateJsonSchema(ref_template="#/components/schemas/{model}")
        self._schemas, self.definitions = generator.generate_definitions(
            [(kind, mode, TypeAdapter(kind).core_schema) for kind, mode in kinds]
        )

    def content(self, kind: Any, mode: JsonSchemaMode) -> dict[str, Any]:
        """Return the content of a body in JSON."""
        return {"application/json": {"schema": self._schemas[kind, mode]}}


def _operation(route: JsonRoute, schemas: _Schemas) -> dict[str, Any]:
    """Return the OpenAPI operation of a route."""
    says = route.description
    name = re.sub(r"\W", "_", f"{route.name}{route.path_format}")
    operation: dict[str, Any] = {
        "summary": says.summary,
        "tags": list(says.tags),
        "operationId": f"{name}_{route.method.lower()}",
        "responses": {},
    }
    if parameters := list(_parameters(route)):
        operation["parameters"] = parameters
    if route.body is not None:
        content = schemas.content(route.body.kind, "validation")
        required = {"required": True} if route.body.required else {}
        operation["requestBody"] = {"content": content, **required}
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Successful Response"}}
    if says.model is not None:
        responses[200]["content"] = schemas.content(says.model, "serialization")
    for status, response in says.responses.items():
        answer = {**responses.get(status, {}), **response}
        if (model := answer.pop("model", None)) is not None:
            answer["content"] = schemas.content(model, "serialization")
        responses[status] = answer
    operation["responses"] = {str(status): answer for status, answer in responses.items()}
    return operation


def _parameters(route: JsonRoute) -> Iterator[dict[str, Any]]:
    """Yield what a route takes besides its body."""
    for name in route.param_convertors:
        schema: dict[str, Any] = {"type": "string", "title": name.replace("_", " ").title()}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if route.query is not None:
        schema = route.query.adapter.json_schema()
        for name, field in schema["properties"].items():
            required = name in schema.get("required", ())
            yield {"name": name, "in": "query", "required": required, "schema": field}
    for header in route.headers:
        schema = {**header.adapter.json_schema(), "title": header.alias.title()}
        yield {"name": header.alias, "in": "header", "required": header.required, "schema": schema}
