"""Routes whose bodies and answers are the JSON of protocol models."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ajet_core.errors import RequestError, VersionError
from ajet_core.protocol import (
    DEPRECATED,
    DEPRECATED_HEADER,
    PROTOCOL_HEADER,
    SUPPORTED_VERSIONS,
    negotiate,
)
from ajet_server.http.deprecated import deprecations
from ajet_server.http.http_errors import request_error

_JSON = "application/json"


class JsonRoute(APIRoute):
    """A route of the protocol, which calls its endpoint as a plain Starlette route does.

    FastAPI reads the endpoint's signature to describe the route in the OpenAPI document. It does
    not serve the route: its dependency system costs several times the work of a claim or an end.

    An endpoint takes at most one body, a model of the query, the request, strings of the path,
    headers, and the results of coroutines that take the request (`fastapi.Depends`). It returns a
    model or a response.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        takes = self.dependant
        self._body = takes.body_params[0] if takes.body_params else None
        if self._body is not None:
            annotation: Any = self._body.field_info.annotation
            self._from_json = TypeAdapter(annotation)
        self._query = takes.query_params[0] if takes.query_params else None
        self._request = takes.request_param_name
        self._path = [param.name for param in takes.path_params]
        self._headers = takes.header_params
        self._makers = {one.name: one.call for one in takes.dependencies if one.name and one.call}
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        arguments: dict[str, Any] = {}
        problems: list[Any] = []
        if self._body is not None:
            arguments[self._body.name] = self._parse(request, await request.body(), problems)
        version = _agreed_version(request)
        for name, make in self._makers.items():
            arguments[name] = await make(request)
        for name in self._path:
            arguments[name] = request.path_params[name]
        for param in self._headers:
            if (value := request.headers.get(param.alias)) is not None:
                arguments[param.name], wrong = param.validate(
                    value, {}, loc=("header", param.alias)
                )
                problems += wrong or ()
        if self._query is not None:
            arguments[self._query.name], wrong = self._query.validate(
                dict(request.query_params), {}, loc=("query",)
            )
            problems += wrong or ()
        if problems:
            raise request_error(problems)
        if self._request is not None:
            arguments[self._request] = request
        answer = await self.endpoint(**arguments)
        if not isinstance(answer, Response):
            answer = Response(answer.model_dump_json(), media_type=_JSON)
        if DEPRECATED:
            body = arguments[self._body.name] if self._body is not None else None
            for one in deprecations(f"{request.method} {self.path_format}", version, body):
                answer.headers.append(DEPRECATED_HEADER, one)
        await answer(scope, receive, send)

    def _parse(self, request: Request, body: bytes, problems: list[Any]) -> Any:
        """Return the endpoint's body.

        :param problems: receives what is wrong with the body, as pydantic describes it.
        :raises RequestError: the body is not JSON.
        """
        field = self._body
        assert field is not None
        if not body:
            if field.field_info.is_required():
                problems.append({"type": "missing", "loc": ("body",), "msg": "Field required"})
            return field.field_info.get_default()
        content: Any = body
        if _is_json(request.headers.get("content-type") or _JSON):
            try:
                return self._from_json.validate_json(body)
            except ValidationError:
                # Python reads more as JSON than pydantic does, and its errors are the better ones.
                content = _loads(body)
        value, wrong = field.validate(content, {}, loc=("body",))
        problems += wrong or ()
        return value


def _is_json(content_type: str) -> bool:
    if content_type == _JSON:
        return True
    message = Message()
    message["content-type"] = content_type
    kind = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (
        kind == "json" or kind.endswith("+json")
    )


def _loads(body: bytes) -> Any:
    """Parse JSON.

    :raises RequestError: the body is not JSON.
    """
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        where = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
        raise request_error([where]) from None
    except (ValueError, RecursionError):
        # It is not Unicode, a number has too many digits, or it is nested too deeply.
        raise RequestError("the body is not valid JSON") from None


def _agreed_version(request: Request) -> str | None:
    """Return the protocol version that a request and the server share, if its header states one.

    :raises VersionError: the server does not support the version.
    """
    spoken = request.headers.get(PROTOCOL_HEADER)
    if spoken is None:
        return None
    try:
        common = negotiate([spoken])
    except ValueError as error:
        raise VersionError(str(error), param=PROTOCOL_HEADER) from error
    if common is None:
        raise VersionError(
            f"the server supports protocol {', '.join(SUPPORTED_VERSIONS)}, but the client "
            f"sent {spoken}: install a client of the same major version",
            param=PROTOCOL_HEADER,
        )
    return common
