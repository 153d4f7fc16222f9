"""Write errors as HTTP responses: in the dialect's form on agents' routes, else in the server's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from ajet_core.errors import AjetError, BusyError, NotFoundError, RequestError
from ajet_core.protocol import ErrorBody, ErrorDetail
from ajet_server.gateway.formats.table import dialect_of, doubled_version, is_llm_path

# The status that nginx logs for a client that closed the connection.
CLIENT_CLOSED_REQUEST = 499


def error_response(error: AjetError, path: str) -> JSONResponse:
    """Return the response for `error`, in the form that callers of `path` expect."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if is_llm_path(path):
        content = dialect_of(path).error(error)
        # The official SDKs retry on some statuses by default; this header overrides the default.
        # Unexpected errors may be transient: leave those to the SDK.
        if type(error) is not AjetError:
            headers["x-should-retry"] = "true" if error.retry_after is not None else "false"
    else:
        content = ErrorBody(error=ErrorDetail(**error.to_payload())).model_dump()
    return JSONResponse(content, status_code=error.status, headers=headers)


def note_refusal(scope: Scope, error: AjetError) -> None:
    """Count a request that was refused with 429."""
    if error.status == BusyError.status:
        scope["app"].state.throttled.note(error.message)


async def on_ajet_error(request: Request, error: Exception) -> JSONResponse:
    """Handle the server's own errors."""
    assert isinstance(error, AjetError)
    note_refusal(request.scope, error)
    return error_response(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Handle unknown routes and methods, and HTTP errors of the framework."""
    assert isinstance(error, HTTPException)
    described: AjetError
    if error.status_code in (404, 405):
        advice = doubled_version(request.url.path)
        reason = f"{error.detail}: {advice}" if advice else error.detail
        described = NotFoundError(f"{request.method} {request.url.path}: {reason}")
    else:
        described = RequestError(error.detail)
    answer = error_response(described, request.url.path)
    answer.status_code = error.status_code
    if error.status_code == 405:
        answer.headers["allow"] = ", ".join(_methods(request))
    return answer


def _methods(request: Request) -> list[str]:
    """Return the methods that the path of a request supports."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


async def on_client_gone(request: Request, _: Exception) -> JSONResponse:
    """Handle clients that disconnect while they send a body; the response is for the log only."""
    answer = error_response(RequestError("the client disconnected"), request.url.path)
    answer.status_code = CLIENT_CLOSED_REQUEST
    return answer


async def on_unexpected(request: Request, _: Exception) -> JSONResponse:
    """Handle defects: the server logs the traceback, the client gets a generic error."""
    return error_response(internal_error(), request.url.path)


def internal_error() -> AjetError:
    """Return the generic error that clients get for a defect."""
    return AjetError("internal error; see the server's log for the details")


def request_error(problems: Sequence[Any]) -> RequestError:
    """Return one error for pydantic's list of problems; it names fields but not their values."""
    texts = []
    for problem in problems[:5]:
        if problem["type"] == "model_attributes_type" and tuple(problem["loc"]) == ("body",):
            texts.append("the body is not a JSON object sent as application/json")
            continue
        where = ".".join(str(part) for part in problem["loc"] if part != "body") or "body"
        texts.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    if len(problems) > 5:
        texts.append(f"and {len(problems) - 5} more")
    first = ".".join(str(part) for part in problems[0]["loc"] if part != "body") or None
    return RequestError("; ".join(texts), param=first)
