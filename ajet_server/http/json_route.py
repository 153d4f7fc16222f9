"""Routes whose bodies and answers are the JSON of protocol models."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import (
    Annotated,
    Any,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
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
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Awaitable[Any]])

Responses = Mapping[int | str, Mapping[str, Any]]
"""Responses of a route by status, as OpenAPI has them; ``model`` stands for a model's schema."""


@dataclass(frozen=True)
class Needs:
    """Annotates an argument that a coroutine makes of the request, or for which it refuses it."""

    make: Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True)
class FromHeader:
    """Annotates an argument that is a header of the request.

    :ivar name: in lower case.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an endpoint that is read from the request.

    :ivar where: ``body``, ``query`` or ``header``.
    :ivar kind: its annotation: models of bodies and queries, anything in headers.
    :ivar alias: the name of the header; the argument's own name for others.
    """

    where: str
    name: str
    kind: Any
    alias: str
    required: bool

    @property
    def adapter(self) -> TypeAdapter[Any]:
        """What validates it and describes it."""
        return _adapter(self.kind)

    def validate(self, value: Any, problems: list[Any]) -> Any:
        """Return the valid value.

        :param problems: receives what is wrong with it, as pydantic describes it.
        """
        try:
            return self.adapter.validate_python(value, from_attributes=True)
        except ValidationError as error:
            loc = (self.where, self.alias) if self.where == "header" else (self.where,)
            for one in error.errors(include_url=False):
                problems.append({**one, "loc": (*loc, *one["loc"])})
            return None


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """What the OpenAPI document says of a route besides its arguments.

    :ivar model: of the answer; None if `responses` describes it.
    """

    summary: str
    tags: Sequence[str]
    model: type[BaseModel] | None
    responses: Responses


class JsonRoute(Route):
    """A route of the protocol.

    An endpoint takes at most one model: its body, or the query of a GET request. It may also take
    the request, strings of the path, headers (`FromHeader`), and what coroutines make of the
    request (`Needs`). It returns a model or a response.

    :param endpoint: its signature says what it takes; annotations are read as those of its module.
    :raises TypeError: the signature has an argument of another kind.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Any]],
        method: str,
        description: RouteDescription,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        # Starlette would answer HEAD, too.
        self.methods = {method}
        self.method = method
        self.description = description
        self.app = self._serve
        self.body: Argument | None = None
        self.query: Argument | None = None
        self.headers: list[Argument] = []
        self._request: str | None = None
        self._makers: dict[str, Callable[[Request], Awaitable[Any]]] = {}
        hints = get_type_hints(endpoint, include_extras=True)
        for name, parameter in inspect.signature(endpoint).parameters.items():
            self._take(name, hints[name], required=parameter.default is parameter.empty)

    def _take(self, name: str, kind: Any, *, required: bool) -> None:
        """Note where an argument of the endpoint comes from."""
        for part in (kind, *get_args(kind)):
            for mark in get_args(part)[1:] if get_origin(part) is Annotated else ():
                if isinstance(mark, Needs):
                    self._makers[name] = mark.make
                    return
                if isinstance(mark, FromHeader):
                    self.headers.append(Argument("header", name, part, mark.name, required))
                    return
        if kind is Request:
            self._request = name
        elif _has_model(kind) and self.method == "GET":
            self.query = Argument("query", name, kind, name, required)
        elif _has_model(kind):
            self.body = Argument("body", name, kind, name, required)
        elif name not in self.param_convertors:
            raise TypeError(f"the endpoint of {self.path} takes {name}, which no request has")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        arguments: dict[str, Any] = dict(request.path_params)
        problems: list[Any] = []
        body = None
        if self.body is not None:
            body = _parsed(self.body, request, await request.body(), problems)
            # Without a body, the endpoint's own default is the body.
            if body is not None:
                arguments[self.body.name] = body
        version = _agreed_version(request)
        for name, make in self._makers.items():
            arguments[name] = await make(request)
        for header in self.headers:
            if (value := request.headers.get(header.alias)) is not None:
                arguments[header.name] = header.validate(value, problems)
        if self.query is not None:
            arguments[self.query.name] = self.query.validate(dict(request.query_params), problems)
        if problems:
            raise request_error(problems)
        if self._request is not None:
            arguments[self._request] = request
        answer = await self.endpoint(**arguments)
        if not isinstance(answer, Response):
            answer = Response(answer.model_dump_json(), media_type=_JSON)
        if DEPRECATED:
            for one in deprecations(f"{request.method} {self.path_format}", version, body):
                answer.headers.append(DEPRECATED_HEADER, one)
        await answer(scope, receive, send)


class _Decorator(Protocol):
    def __call__(self, endpoint: _Endpoint, /) -> _Endpoint: ...


class _Described(TypedDict, total=False):
    """What a decorator says of its route.

    `model` is that of an answer which the endpoint returns as a `Response`; other answers are
    described by the endpoint's signature. `responses` come besides those of all routes.
    """

    summary: Required[str]
    tags: Required[Sequence[str]]
    model: type[BaseModel]
    responses: Responses


class JsonRoutes:
    """The routes of an application, to which its methods add as decorators of endpoints.

    :param responses: of every `JsonRoute` that it adds.
    :ivar routes: in the order in which requests are compared with them.
    """

    def __init__(self, responses: Responses) -> None:
        self.routes: list[BaseRoute] = []
        self._responses = responses

    def get(self, path: str, **described: Unpack[_Described]) -> _Decorator:
        return self._adding("GET", path, described)

    def post(self, path: str, **described: Unpack[_Described]) -> _Decorator:
        return self._adding("POST", path, described)

    def put(self, path: str, **described: Unpack[_Described]) -> _Decorator:
        return self._adding("PUT", path, described)

    def delete(self, path: str, **described: Unpack[_Described]) -> _Decorator:
        return self._adding("DELETE", path, described)

    def _adding(self, method: str, path: str, described: _Described) -> _Decorator:
        def add(endpoint: _Endpoint, /) -> _Endpoint:
            returned = get_type_hints(endpoint).get("return")
            description = RouteDescription(
                described["summary"],
                described["tags"],
                described.get("model", returned if _is_model(returned) else None),
                {**self._responses, **described.get("responses", {})},
            )
            self.routes.append(JsonRoute(path, endpoint, method, description))
            return endpoint

        return add


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _has_model(kind: Any) -> bool:
    return _is_model(kind) or any(_is_model(one) for one in get_args(kind))


def _parsed(argument: Argument, request: Request, body: bytes, problems: list[Any]) -> Any:
    """Return the endpoint's body; None if there is none.

    :param problems: receives what is wrong with the body, as pydantic describes it.
    :raises RequestError: the body is not JSON.
    """
    if not body:
        if argument.required:
            problems.append({"type": "missing", "loc": ("body",), "msg": "Field required"})
        return None
    content: Any = body
    if _is_json(request.headers.get("content-type") or _JSON):
        try:
            return argument.adapter.validate_json(body)
        except ValidationError:
            # Python reads more as JSON than pydantic does, and its errors are the better ones.
            content = _loads(body)
    return argument.validate(content, problems)


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
