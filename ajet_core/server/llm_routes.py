"""The routes agents call with their episode's key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ajet_core.errors import AjetError, DeadlineError, EpisodeClosedError
from ajet_core.server.auth import bearer
from ajet_core.server.dialects.chat import ChatService, models_list
from ajet_core.server.dialects.chat_request import ChatRequest, parse_chat_request
from ajet_core.server.disconnect import until_disconnect
from ajet_core.server.episodes import OpenEpisode
from ajet_core.server.http_errors import openai_error
from ajet_core.server.service import SwarmService

T = TypeVar("T")

AGENT_HEADER = "x-ajet-agent"
IGNORED_HEADER = "x-ajet-ignored"
_MAX_AGENT_NAME = 256


def add_routes(app: FastAPI, service: SwarmService) -> None:
    """Add the OpenAI-compatible routes. Their bodies are parsed by the dialect, which knows what to
    be liberal with; FastAPI only documents them."""

    @app.post(
        "/v1/chat/completions",
        summary="OpenAI chat completions",
        tags=["agents"],
        response_class=JSONResponse,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        },
    )
    async def chat_completions(request: Request) -> Response:
        episode = await service.episodes.authenticate(bearer(request.headers))
        parsed = parse_chat_request(await request.body())
        chat = await _chat_service(service)
        return await _ChatCall(service, chat, episode, request, parsed).answer()

    @app.get("/v1/models", summary="The served model", tags=["agents"])
    async def models(request: Request) -> dict[str, Any]:
        await service.episodes.authenticate(bearer(request.headers))
        return models_list(service.coordinator.model_name or "default", int(service.started_at))


async def _chat_service(service: SwarmService) -> ChatService:
    """The chat service; while the first boot is on its way, calls wait for it."""
    deadline = service.settings.server.call_deadline_seconds
    coordinator = service.coordinator
    try:
        async with asyncio.timeout(deadline):
            await service.board.wait_until(
                lambda: coordinator.chat is not None or not coordinator.running
            )
    except TimeoutError as error:
        raise DeadlineError(f"the server was not ready within {deadline:.0f} s") from error
    if coordinator.chat is None:
        raise service.board.not_running()
    return coordinator.chat


class _ChatCall:
    """One chat request of an episode."""

    def __init__(
        self,
        service: SwarmService,
        chat: ChatService,
        episode: OpenEpisode,
        request: Request,
        parsed: ChatRequest,
    ) -> None:
        self._service = service
        self._chat = chat
        self._episode = episode
        self._request = request
        self._parsed = parsed
        self._agent = request.headers.get(AGENT_HEADER, "")[:_MAX_AGENT_NAME]
        ignored = ",".join(parsed.ignored)
        self._headers = {IGNORED_HEADER: ignored} if ignored.isascii() and ignored else {}

    async def answer(self) -> Response:
        """The whole completion, or a stream of it."""
        if not self._parsed.stream:
            completion = await until_disconnect(self._request, self._complete())
            return JSONResponse(completion, headers=self._headers)
        chunks = self._stream()
        # The first chunk is awaited before the status is sent, so that an error has its own status.
        first = await until_disconnect(self._request, _first(chunks))
        return StreamingResponse(
            _sse(first, chunks),
            media_type="text/event-stream",
            headers={**self._headers, "cache-control": "no-store"},
        )

    async def _complete(self) -> dict[str, Any]:
        return await self._as_call(
            self._chat.complete(
                self._episode.session, self._parsed, self._service.store.add_call, self._agent
            )
        )

    async def _stream(self) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks of the completion; a task of its own makes them, so that closing either the episode
        or this generator stops the engine, whichever task the generator is read from."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        async def produce() -> None:
            try:
                async for chunk in self._chat.stream(
                    self._episode.session, self._parsed, self._service.store.add_call, self._agent
                ):
                    queue.put_nowait(chunk)
            finally:
                queue.put_nowait(None)

        call = asyncio.create_task(self._as_call(produce()))
        try:
            while (chunk := await queue.get()) is not None:
                yield chunk
            await call
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def _as_call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which the episode's end and the deadline cancel.

        :raises EpisodeClosedError: the episode was closed meanwhile.
        :raises DeadlineError: it took too long, waiting for weights included.
        """
        deadline = self._service.settings.server.call_deadline_seconds
        task = asyncio.create_task(work)
        with self._service.episodes.running_call(self._episode, task):
            try:
                done, _ = await asyncio.wait([task], timeout=deadline)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        if not done:
            raise DeadlineError(
                f"the call was not answered within {deadline:g} s (the server is "
                f"{self._service.board.state}; setting server.call_deadline_seconds)"
            )
        if task.cancelled():
            raise EpisodeClosedError("the episode was closed while this call was answered")
        return task.result()


async def _first(chunks: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    return await anext(chunks)


async def _sse(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None]
) -> AsyncIterator[str]:
    """Server-sent events of a stream whose first chunk is known."""
    try:
        yield _event(first)
        async for chunk in rest:
            yield _event(chunk)
        yield "data: [DONE]\n\n"
    except AjetError as error:
        # The status is sent already; the SDKs raise on an error object in the stream.
        yield _event(openai_error(error))
    finally:
        await rest.aclose()


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
