"""The routes that agents call with their episode's key."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from ajet_core.errors import AjetError, NotFoundError, UnsupportedError
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.gateway.formats.completing import overridden, speaker
from ajet_server.gateway.formats.dialect import Dialect, DialectRequest
from ajet_server.gateway.formats.retries import SameRequest
from ajet_server.gateway.formats.table import (
    CONTENT,
    CONTENT_METHODS,
    COUNT_METHOD,
    DIALECTS,
    GOOGLE_PREFIX,
    KEY_PARAMETER,
    KEY_PREFIX,
    MESSAGES,
    is_google_path,
    model_object,
    models_list,
)
from ajet_server.http.disconnect import until_disconnect
from ajet_server.http.model_calls import ModelCall, completion_service, note_fault
from ajet_server.http.model_service import ModelService
from ajet_server.security.api_keys import bearer

if TYPE_CHECKING:
    from ajet_server.telemetry.calls import CallSpan

MODELS_PATH = "/v1/models"
COUNT_PATH = "/v1/messages/count_tokens"
EMBEDDINGS_PATH = "/v1/embeddings"
GOOGLE_MODELS_PATH = f"{GOOGLE_PREFIX}models"
AGENT_HEADER = "x-ajet-agent"
_KEY_IN_PATH = f"{KEY_PREFIX}{{episode_key}}"
_MAX_AGENT_NAME = 256
# Bytes; larger bodies take milliseconds to read.
_LARGE_BODY = 2**17
# Between two large bodies, in the time that reading the first took.
_PAUSES = 2


class _ModelName(Convertor[str]):
    """The name of a model in a path, which does not end with one of Google's methods."""

    regex = rf"(?!.*:(?:{'|'.join((*CONTENT_METHODS, COUNT_METHOD))})$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("model_name", _ModelName())


def add_routes(routes: list[BaseRoute], service: ModelService) -> None:
    """Add the routes of all dialects.

    They are plain Starlette routes: the dialect parses their bodies, because it defines which
    deviations to accept. `OPENAPI_PATHS` describes them.
    """

    def described() -> dict[str, Any]:
        chat = service.run.chat
        context = None if chat is None else chat.info.max_context
        return model_object(service.run.model_name or "default", int(service.started_at), context)

    async def models(request: Request) -> Response:
        await service.episodes.authenticate(episode_key(request))
        return JSONResponse(models_list(described()))

    async def model(request: Request) -> Response:
        asked = request.path_params["model"]
        await service.episodes.authenticate(episode_key(request))
        only = described()
        if asked != only["id"]:
            raise NotFoundError(
                f"model {asked[:80]!r} does not exist; this server has only {only['id']!r}"
            )
        return JSONResponse(only)

    async def count_tokens(request: Request) -> Response:
        episode = await service.episodes.authenticate(episode_key(request))
        asked = MESSAGES.read_to_count(await request.body())
        completions = await completion_service(service)
        counted = await until_disconnect(request, completions.count(episode.session, asked))
        return JSONResponse({"input_tokens": counted})

    async def count_contents(request: Request) -> Response:
        episode = await service.episodes.authenticate(episode_key(request))
        asked = CONTENT.read_to_count(await request.body(), episode.session)
        completions = await completion_service(service)
        counted = await until_disconnect(request, completions.count(episode.session, asked))
        return JSONResponse({"totalTokens": counted})

    async def embeddings(request: Request) -> Response:
        await service.episodes.authenticate(episode_key(request))
        raise UnsupportedError(
            "embeddings are not supported by this server: its model generates text"
        )

    bodies = Bodies()
    for path, dialect in DIALECTS.items():
        for prefix in ("", _KEY_IN_PATH):
            call = CallRoute(service, dialect, bodies)
            routes.append(Route(prefix + path, call, methods=["POST"]))
    for method, dialect in CONTENT_METHODS.items():
        for path in _content_paths(method):
            call = CallRoute(service, dialect, bodies)
            routes.append(Route(path, call, methods=["POST"]))
    for path in _content_paths(COUNT_METHOD):
        routes.append(Route(path, count_contents, methods=["POST"]))
    for prefix in ("", _KEY_IN_PATH):
        for path, method, answer in (
            (MODELS_PATH, "GET", models),
            (MODELS_PATH + "/{model:model_name}", "GET", model),
            (COUNT_PATH, "POST", count_tokens),
            (EMBEDDINGS_PATH, "POST", embeddings),
            (GOOGLE_MODELS_PATH, "GET", models),
            (GOOGLE_MODELS_PATH + "/{model:model_name}", "GET", model),
        ):
            routes.append(Route(prefix + path, answer, methods=[method]))


def refuse_calls(routes: list[BaseRoute], base_url: str) -> None:
    """Add routes that say where agents' calls are answered."""

    async def refuse(_: Request) -> Response:
        raise NotFoundError(f"the calls of agents are answered at {base_url}, not by this process")

    for path in (*DIALECTS, MODELS_PATH, COUNT_PATH, EMBEDDINGS_PATH, f"{KEY_PREFIX}{{rest:path}}"):
        routes.append(Route(path, refuse, methods=["GET", "POST"]))


def episode_key(request: Request) -> str:
    """Return the episode's key from the path, a header or the query of a request."""
    if in_path := request.path_params.get("episode_key"):
        return str(in_path)
    key = bearer(request.headers)
    if not key and is_google_path(request.url.path):
        key = request.query_params.get(KEY_PARAMETER, "")
    return key


def _content_paths(method: str) -> list[str]:
    """Return the paths of one of Google's methods."""
    return [
        f"{prefix}{version}models/{{model:path}}:{method}"
        for version in (GOOGLE_PREFIX, "/v1/")
        for prefix in ("", _KEY_IN_PATH)
    ]


def _agent_name(request: Request) -> str:
    """Return the name of the calling agent, "" if the request has none.

    Names are UTF-8; invalid bytes are replaced.
    """
    name = request.headers.get(AGENT_HEADER, "")
    return name.encode("latin-1").decode(errors="replace")[:_MAX_AGENT_NAME]


class Bodies:
    """The bodies of model calls, by size.

    :ivar small: number of calls with small bodies that are in progress.
    """

    def __init__(self) -> None:
        self.small = 0
        self._reading = asyncio.Lock()

    async def read_large(self, read: Callable[[], DialectRequest]) -> DialectRequest:
        """Read a large body, with no other large one being read meanwhile.

        Small calls take several turns of the event loop: while there are any, a pause follows.
        """
        await self._reading.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return read()
        finally:
            pause = _PAUSES * (loop.time() - began) if self.small else 0.0
            loop.call_later(pause, self._reading.release)


class CallRoute:
    """ASGI application of one dialect's route.

    Being an ASGI application, it can count a call as running until the last byte of its answer is
    sent.

    :param bodies: shared by all routes.
    """

    def __init__(self, service: ModelService, dialect: Dialect, bodies: Bodies) -> None:
        self._service = service
        self._dialect = dialect
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        service = self._service
        episode = await service.episodes.authenticate(episode_key(request))
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(service.episodes.counted(episode))
            except AjetError as error:
                await note_fault(service, episode, error)
                raise
            if service.telemetry is None:
                await self._answer(request, episode, send)
                return
            with service.telemetry.call(episode.record.episode_id, scope["headers"]) as span:
                await self._answer(request, episode, send, span)

    async def _answer(
        self, request: Request, episode: OpenEpisode, send: Send, span: CallSpan | None = None
    ) -> None:
        service, scope = self._service, request.scope
        dialect = self._dialect.chosen(request.query_params)
        body = await request.body()
        is_large = len(body) > _LARGE_BODY
        self._bodies.small += not is_large
        try:
            read = functools.partial(dialect.read, body, episode.session)
            asked = await self._bodies.read_large(read) if is_large else read()
            model_request = asked.request
            if (named := request.path_params.get("model")) is not None:
                model_request = replace(model_request, model=named)
            agent = _agent_name(request) or speaker(
                model_request, episode.rules.agents, service.run.agents
            )
            if episode.record.kind == "eval":
                model_request = replace(model_request, is_evaluation=True)
                model_request = overridden(model_request, service.run.evaluation_sampling)
            model_request = overridden(model_request, episode.rules.sampling)
            asked = replace(asked, request=model_request)
            same = SameRequest.read(request.headers, scope["path"], agent, body)
            call = ModelCall(service, episode, request, dialect, asked, agent, same, span)
            response = await call.answer()
            await response(scope, request.receive, send)
        finally:
            self._bodies.small -= not is_large


_MODEL_PARAMETER = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "Any name: the server has one model.",
}


def _operation(summary: str, *, body: bool, names_model: bool = False) -> dict[str, Any]:
    """Return an OpenAPI operation; the dialect's own specification has the details."""
    anything: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    failed = {"description": "An error in the dialect's format.", "content": anything}
    return {
        "summary": summary,
        "tags": ["agents"],
        **({"parameters": [_MODEL_PARAMETER]} if names_model else {}),
        **({"requestBody": {"required": True, "content": anything}} if body else {}),
        "responses": {
            "200": {"description": "See the dialect's own specification.", "content": anything},
            "400": {
                **failed,
                "description": (
                    "The request is not valid in the dialect, or needs something that the model "
                    "does not support."
                ),
            },
            "410": {**failed, "description": "The episode has ended."},
            "4XX": failed,
            "5XX": failed,
        },
    }


OPENAPI_PATHS: dict[str, dict[str, Any]] = {
    **{
        path: {"post": _operation(dialect.summary, body=True)} for path, dialect in DIALECTS.items()
    },
    COUNT_PATH: {
        "post": _operation("Count the input tokens of an Anthropic messages request", body=True)
    },
    **{
        f"{GOOGLE_MODELS_PATH}/{{model}}:{method}": {
            "post": _operation(dialect.summary, body=True, names_model=True)
        }
        for method, dialect in CONTENT_METHODS.items()
    },
    f"{GOOGLE_MODELS_PATH}/{{model}}:{COUNT_METHOD}": {
        "post": _operation(
            "Count the input tokens of a Google generateContent request",
            body=True,
            names_model=True,
        )
    },
    MODELS_PATH: {"get": _operation("List the served model", body=False)},
    GOOGLE_MODELS_PATH: {"get": _operation("List the served model for Google's SDK", body=False)},
}
