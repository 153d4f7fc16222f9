"""The routes agents call with their episode's key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ajet_core.errors import (
    AjetError,
    DeadlineError,
    EpisodeClosedError,
    NotFoundError,
    UnsupportedError,
)
from ajet_core.server.auth import bearer
from ajet_core.server.dialects.completing import CompletionService
from ajet_core.server.dialects.dialect import Asked, Dialect
from ajet_core.server.dialects.evaluated import evaluated
from ajet_core.server.dialects.exchange import Exchange
from ajet_core.server.dialects.models import model_object, models_list
from ajet_core.server.dialects.retries import SameRequest, SharedAnswer
from ajet_core.server.dialects.speakers import speaker
from ajet_core.server.dialects.table import DIALECTS, KEY_PREFIX, MESSAGES
from ajet_core.server.disconnect import until_disconnect, when_unread
from ajet_core.server.http_errors import internal_error
from ajet_core.server.open_episodes import OpenEpisode
from ajet_core.server.service import SwarmService

_log = logging.getLogger("ajet.server")

T = TypeVar("T")

MODELS_PATH = "/v1/models"
COUNT_PATH = "/v1/messages/count_tokens"
EMBEDDINGS_PATH = "/v1/embeddings"
AGENT_HEADER = "x-ajet-agent"
IGNORED_HEADER = "x-ajet-ignored"
_KEY_IN_PATH = f"{KEY_PREFIX}{{episode_key}}"
_MAX_AGENT_NAME = 256


def add_routes(app: FastAPI, service: SwarmService) -> Route:
    """Add the routes of all dialects.

    They are plain Starlette routes: their bodies are parsed by the dialect, which knows what to be liberal
    with. `OPENAPI_PATHS` describes them.

    :return: the one for `ShortCut`.
    """

    async def models(request: Request) -> Response:
        await service.episodes.authenticate(episode_key(request))
        name = service.coordinator.model_name or "default"
        return JSONResponse(models_list(name, int(service.started_at)))

    async def model(request: Request) -> Response:
        await service.episodes.authenticate(episode_key(request))
        name = service.coordinator.model_name or "default"
        asked = request.path_params["model"]
        if asked != name:
            raise NotFoundError(f"there is no model {asked[:80]!r}, only {name!r}")
        return JSONResponse(model_object(name, int(service.started_at)))

    async def count_tokens(request: Request) -> Response:
        episode = await service.episodes.authenticate(episode_key(request))
        asked = MESSAGES.read_to_count(await request.body())
        completions = await _completion_service(service)
        counted = await until_disconnect(request, completions.count(episode.session, asked))
        return JSONResponse({"input_tokens": counted})

    async def embeddings(request: Request) -> Response:
        await service.episodes.authenticate(episode_key(request))
        raise UnsupportedError(
            "this server hosts a model that writes text and makes no embeddings: ask another server for them"
        )

    routes = []
    for path, dialect in DIALECTS.items():
        for prefix in ("", _KEY_IN_PATH):
            routes.append(Route(prefix + path, _Calls(service, dialect), methods=["POST"]))
    app.router.routes += routes
    for prefix in ("", _KEY_IN_PATH):
        for path, method, answer in (
            (MODELS_PATH, "GET", models),
            (MODELS_PATH + "/{model:path}", "GET", model),
            (COUNT_PATH, "POST", count_tokens),
            (EMBEDDINGS_PATH, "POST", embeddings),
        ):
            app.add_route(prefix + path, answer, methods=[method], include_in_schema=False)
    return routes[0]


def episode_key(request: Request) -> str:
    """The key that a request comes with: in its path, or in a header."""
    in_path = request.path_params.get("episode_key")
    return str(in_path) if in_path else bearer(request.headers)


def _agent_name(request: Request) -> str:
    """Who makes a call, "" if nobody says. Names are sent in UTF-8; whatever else there is, is read as far as it goes."""
    name = request.headers.get(AGENT_HEADER, "")
    return name.encode("latin-1").decode(errors="replace")[:_MAX_AGENT_NAME]


class _Calls:
    """An ASGI application of its own, so that a call counts until the last byte of its answer is sent."""

    def __init__(self, service: SwarmService, dialect: Dialect) -> None:
        self._service = service
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        service = self._service
        episode = await service.episodes.authenticate(episode_key(request))
        with service.tenants.call(episode.record, episode.session.next_index):
            body = await request.body()
            asked = self._dialect.read(body, episode.session)
            if episode.record.kind == "eval":
                sampling = service.evaluations.config.sampling
                asked = replace(asked, request=evaluated(asked.request, sampling))
            agent = _agent_name(request) or speaker(
                asked.request.messages, service.coordinator.agents
            )
            same = SameRequest.read(request.headers, scope["path"], agent, body)
            call = _Call(service, episode, request, self._dialect, asked, agent, same)
            response = await call.answer()
            await response(scope, receive, send)


def _operation(summary: str, *, body: bool) -> dict[str, Any]:
    """An operation in the words of OpenAPI; the dialect's own specification says the rest."""
    anything: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    failed = {"description": "An error in the dialect's form.", "content": anything}
    return {
        "summary": summary,
        "tags": ["agents"],
        **({"requestBody": {"required": True, "content": anything}} if body else {}),
        "responses": {
            "200": {"description": "As the dialect's own specification says.", "content": anything},
            "4XX": failed,
            "5XX": failed,
        },
    }


OPENAPI_PATHS: dict[str, dict[str, Any]] = {
    **{
        path: {"post": _operation(dialect.summary, body=True)} for path, dialect in DIALECTS.items()
    },
    COUNT_PATH: {"post": _operation("Tokens of Anthropic messages", body=True)},
    MODELS_PATH: {"get": _operation("The served model", body=False)},
}


async def _completion_service(service: SwarmService) -> CompletionService:
    """The one that answers; while the first boot is on its way, calls wait for it."""
    coordinator = service.coordinator
    await service.board.wait_until(lambda: coordinator.chat is not None or not coordinator.running)
    if coordinator.chat is None:
        raise service.board.not_running()
    return coordinator.chat


class _Call:
    """One request of an episode."""

    def __init__(  # noqa: PLR0917 - who asks, where, how, what
        self,
        service: SwarmService,
        episode: OpenEpisode,
        request: Request,
        dialect: Dialect,
        asked: Asked,
        agent: str,
        same: SameRequest,
    ) -> None:
        self._service = service
        self._episode = episode
        self._request = request
        self._dialect = dialect
        self._asked = asked
        self._agent = agent
        self._same = same
        self._shared: SharedAnswer | None = None

    async def answer(self) -> Response:
        """The whole completion, or a stream of it."""
        if not self._asked.request.stream:
            whole = await self._complete()
            when_unread(self._request, self._unread)
            return Response(whole, media_type="application/json", headers=self._headers())
        chunks = self._stream()
        # The first chunk is awaited before the status is sent, so that an error has its own status.
        first = await until_disconnect(self._request, _first(chunks))
        return StreamingResponse(
            self._body(first, chunks),
            media_type="text/event-stream",
            headers={**self._headers(), "cache-control": "no-store"},
        )

    def _headers(self) -> dict[str, str]:
        request, completions = self._asked.request, self._service.coordinator.chat
        names = request.ignored
        if completions is not None:
            names += completions.without_effect(request)
        ignored = ",".join(names)
        return {IGNORED_HEADER: ignored} if ignored.isascii() and ignored else {}

    async def _complete(self) -> bytes:
        """The completion; the episode's end, the client's farewell and the deadline cancel it.

        A request that is sent again may get an answer that is there already.
        """
        with self._service.episodes.running_call(self._episode, self._answer()) as task:
            whole = None
            try:
                whole = await until_disconnect(self._request, task, self._deadline)
            except TimeoutError:
                raise self._too_slow() from None
            except asyncio.CancelledError:
                if task.cancelled() and not _being_cancelled():
                    raise _closed() from None
                raise
            finally:
                if whole is None:
                    # It may have been made and recorded all the same.
                    self._unread()
            return whole

    async def _answer(self) -> bytes:
        self._shared = self._episode.session.answers.shared(self._same, self._sample())
        return await self._shared.wait()

    def _unread(self) -> None:
        if self._shared is not None:
            self._shared.unread()

    async def _begun(self) -> tuple[CompletionService, Exchange]:
        completions = await _completion_service(self._service)
        begun = completions.begin(
            self._episode.session, self._asked.request, self._service.store.add_call, self._agent
        )
        return completions, begun if isinstance(begun, Exchange) else await begun()

    async def _sample(self) -> bytes:
        completions, exchange = await self._begun()
        return self._asked.whole(exchange, await completions.complete(exchange))

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events of the completion; a task of its own makes them, so that closing either the episode
        or this generator stops the engine, whichever task the generator is read from."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def produce() -> None:
            completions, exchange = await self._begun()
            async with aclosing(completions.events(exchange)) as events:
                async for chunk in self._asked.stream(exchange, events):
                    queue.put_nowait(chunk)

        call = asyncio.create_task(self._as_call(produce))
        # Not from within: what is cancelled before its first step does nothing at all.
        call.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (chunk := await queue.get()) is not None:
                yield chunk
            await call
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def _body(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        """A stream whose first event is known. Its status is sent already, so that errors are events."""
        position = 1
        try:
            yield first
            async for chunk in rest:
                position += 1
                yield chunk
        except AjetError as error:
            yield self._dialect.error_event(error, position)
        except Exception:  # noqa: BLE001 - a defect; the connection need not break for it
            _log.exception("a stream of episode %s broke", self._episode.record.episode_id)
            yield self._dialect.error_event(internal_error(), position)
        finally:
            await rest.aclose()

    async def _as_call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work()`, which the episode's end and the deadline cancel.

        :raises EpisodeClosedError: the episode was closed meanwhile.
        :raises DeadlineError: it took too long, waiting for weights included.
        """
        with self._service.episodes.running_call(self._episode, work()) as task:
            try:
                done, _ = await asyncio.wait([task], timeout=self._deadline)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        if not done:
            raise self._too_slow()
        if task.cancelled():
            raise _closed()
        return task.result()

    @property
    def _deadline(self) -> float:
        return self._service.settings.server.call_deadline_seconds

    def _too_slow(self) -> DeadlineError:
        return DeadlineError(
            f"the call was not answered within {self._deadline:g} s (the server is "
            f"{self._service.board.state}; setting server.call_deadline_seconds)"
        )


def _closed() -> EpisodeClosedError:
    return EpisodeClosedError("the episode was closed while this call was answered")


def _being_cancelled() -> bool:
    """Whether it is the running task itself that is asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)
