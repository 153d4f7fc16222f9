"""Answer one model call of an agent, whole or as a stream.

A call is computed once. The end of its episode, a disconnect of its client or its deadline cancels
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ajet_core.errors import AjetError, ContextLengthError, DeadlineError, EpisodeClosedError
from ajet_core.timeline import Call
from ajet_server.episodes.open_episodes import OpenEpisode, ReservedCalls
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.dialect import Dialect, DialectRequest, StreamWriter
from ajet_server.gateway.formats.events import Choice
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.retries import SameRequest, SharedAnswer
from ajet_server.http.disconnect import until_disconnect, when_unread
from ajet_server.http.http_errors import internal_error
from ajet_server.http.model_service import ModelService

if TYPE_CHECKING:
    from ajet_server.telemetry.calls import CallSpan

_log = logging.getLogger("ajet.server")

T = TypeVar("T")

IGNORED_HEADER = "x-ajet-ignored"
MAX_TOKENS_HEADER = "x-ajet-max-tokens"
"""Response header: the limit on the answer's tokens, if it is lower than the requested one."""
_SERVER_ERROR = 500


async def completion_service(service: ModelService) -> CompletionService:
    """Return the server's completion service; wait for it during the first boot."""
    run = service.run
    await service.board.wait_until(lambda: run.chat is not None or not run.running)
    if run.chat is None:
        raise service.board.not_running()
    return run.chat


class ModelCall:
    """One model request of an episode."""

    def __init__(  # noqa: PLR0917 - who asks, where, how, what
        self,
        service: ModelService,
        episode: OpenEpisode,
        request: Request,
        dialect: Dialect,
        asked: DialectRequest,
        agent: str,
        same: SameRequest,
        span: CallSpan | None = None,
    ) -> None:
        self._service = service
        self._episode = episode
        self._request = request
        self._dialect = dialect
        self._asked = asked
        self._agent = agent
        self._same = same
        self._span = span
        if span is not None:
            span.request, span.agent, span.model = asked.request, agent, self._model_name
        self._shared: SharedAnswer | None = None
        self._exchange: Exchange | None = None
        self._failures = episode.session.failures

    async def answer(self) -> Response:
        """Return the whole completion, or a stream of it."""
        try:
            return await self._response()
        except Exception as error:
            await self._judge(error)
            raise

    async def _response(self) -> Response:
        if not self._asked.request.stream:
            whole = await self._complete()
            await self._answered()
            if self._shared is not None:
                # Not `self._unread`: that would make a reference cycle between the request and
                # this call, which only the garbage collector frees.
                when_unread(self._request, self._shared.unread)
            return Response(whole, media_type="application/json", headers=self._headers())
        chunks = self._stream()
        # Await the first chunk before the status is sent, so that an error gets its own status.
        try:
            first = await until_disconnect(self._request, _first(chunks))
            if self._span is not None:
                self._span.answering()
        except ContextLengthError as error:
            body = self._asked.too_long(error, self._model_name, time.time())
            if body is None:
                raise
            return Response(
                body, media_type=self._dialect.stream_type, headers=self._stream_headers()
            )
        return StreamingResponse(
            self._body(first, chunks),
            media_type=self._dialect.stream_type,
            headers=self._stream_headers(),
        )

    @property
    def _model_name(self) -> str:
        return self._service.run.model_name or "default"

    def _stream_headers(self) -> dict[str, str]:
        return {**self._headers(), "cache-control": "no-store"}

    def _headers(self) -> dict[str, str]:
        request, completions = self._asked.request, self._service.run.chat
        names = request.ignored
        if completions is not None:
            names += completions.without_effect(request)
        ignored = ",".join(names)
        headers = {IGNORED_HEADER: ignored} if ignored.isascii() and ignored else {}
        if self._shared is not None:
            return headers | self._shared.headers
        return headers | self._limit()

    def _limit(self) -> dict[str, str]:
        """Return the header with the limit on the answer's tokens, if the request exceeds it."""
        lowered = None if self._exchange is None else self._exchange.lowered_max_tokens
        return {} if lowered is None else {MAX_TOKENS_HEADER: str(lowered)}

    async def _complete(self) -> bytes:
        """Return the completion; the episode's end, a disconnect and the deadline cancel it.

        A retried request may get an answer that already exists.
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
                    # The answer may have been made and recorded nevertheless.
                    self._unread()
            return whole

    async def _answer(self) -> bytes:
        self._shared = self._episode.session.answers.shared(self._same, self._sample())
        return await self._shared.wait()

    def _unread(self) -> None:
        if self._shared is not None:
            self._shared.unread()

    async def _begun(self, reserved: ReservedCalls) -> tuple[CompletionService, Exchange]:
        completions = await completion_service(self._service)
        request = self._asked.request
        if (most := reserved.most_tokens) is not None:
            request = replace(request, most_tokens=min(most, request.most_tokens or most))

        async def record(call: Call) -> None:
            # The call took its index a moment ago, and nothing was awaited since.
            reserved.taken()
            if self._span is not None:
                self._span.calls.append(call)
            await self._service.add_call(call)

        exchange = await completions.begin(
            self._episode.session,
            request,
            record,
            self._agent,
            is_retry=self._same.is_retry,
            traceparent="" if self._span is None else str(self._span.context),
        )
        self._exchange = exchange
        return completions, exchange

    async def _sample(self) -> bytes:
        with self._episode.reserved(self._asked.request.n) as reserved:
            completions, exchange = await self._begun(reserved)
            if self._shared is not None:
                self._shared.headers |= self._limit()
            choices = await completions.complete(exchange)
            if self._span is not None:
                self._span.answered(choices[0].generation)
        return self._asked.whole(exchange, choices)

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the completion.

        A separate task produces them, so that closing the episode or this generator stops the
        engine, whichever task reads the generator.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        writer: StreamWriter | None = None

        silence = self._service.silence(self._service.settings.stream_heartbeat_seconds)

        def send(chunks: Iterable[bytes]) -> None:
            for chunk in chunks:
                queue.put_nowait(chunk)
                silence.heard()

        async def produce() -> None:
            nonlocal writer
            with self._episode.reserved(self._asked.request.n) as reserved:
                completions, exchange = await self._begun(reserved)
                writer = self._asked.writer(exchange)
                async with aclosing(completions.events(exchange)) as events:
                    async for happened in events:
                        if self._span is not None and isinstance(happened, Choice):
                            self._span.answered(happened.generation)
                        if isinstance(happened, Choice):
                            await self._answered()
                        send(writer.write(happened))
            send(writer.end())

        def beat() -> None:
            send((self._dialect.heartbeat,) if writer is None else writer.heartbeat())

        beating = asyncio.create_task(silence.broken_by(beat))
        call = asyncio.create_task(self._as_call(produce))
        # A callback, not a `finally` inside: a task cancelled before its first step runs no code.
        call.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (chunk := await queue.get()) is not None:
                yield chunk
            await call
        finally:
            call.cancel()
            beating.cancel()
            await asyncio.gather(call, beating, return_exceptions=True)

    async def _body(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        """Yield `first` and the rest. The status is already sent, so errors become events."""
        position = int(first != self._dialect.heartbeat)
        try:
            yield first
            async for chunk in rest:
                position += int(chunk != self._dialect.heartbeat)
                yield chunk
        except AjetError as error:
            await self._failed(error)
            yield self._dialect.error_event(error, position)
        except Exception as error:  # noqa: BLE001 - a defect; the connection need not break for it
            await self._failed(error)
            _log.exception("a stream of episode %s failed", self._episode.record.episode_id)
            yield self._dialect.error_event(internal_error(), position)
        finally:
            await rest.aclose()

    async def _failed(self, error: Exception) -> None:
        await self._judge(error)
        if self._span is not None:
            self._span.failed(error)

    async def _judge(self, error: Exception) -> None:
        await note_fault(self._service, self._episode, error)

    async def _answered(self) -> None:
        """Note an answer, before the client sees it: it makes up for failures before its call."""
        session = self._episode.session
        if session.failure and session.failures == self._failures:
            session.failure = ""
            # A server that is gone learns it when the gateway connects again.
            with contextlib.suppress(AjetError):
                await self._service.episodes.judged(self._episode)

    async def _as_call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work()`, which the episode's end and the deadline cancel.

        :raises EpisodeClosedError: the episode was closed meanwhile.
        :raises DeadlineError: the work, including the wait for weights, took too long.
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
        return self._service.settings.call_deadline_seconds

    def _too_slow(self) -> DeadlineError:
        return DeadlineError(
            f"the call was not completed within {self._deadline:g} s (the server is "
            f"{self._service.board.state}; setting server.call_deadline_seconds)"
        )


async def note_fault(service: ModelService, episode: OpenEpisode, error: Exception) -> None:
    """Note an error that is not the client's doing, before the client sees it."""
    if why := _fault(error):
        episode.session.failed(why)
        with contextlib.suppress(AjetError):
            await service.episodes.judged(episode)


def _fault(error: Exception) -> str:
    """Return what failed in the server, "" if a request or its limits made a call fail."""
    if isinstance(error, HTTPException):
        return ""
    known = error if isinstance(error, AjetError) else internal_error()
    return f"{known.type}: {known.message}" if known.status >= _SERVER_ERROR else ""


def _closed() -> EpisodeClosedError:
    return EpisodeClosedError("the episode was closed while this call was running")


def _being_cancelled() -> bool:
    """Whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)
