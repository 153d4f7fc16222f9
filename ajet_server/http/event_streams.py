"""Streams of server-sent events: the server's events, and what running calls write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ajet_server.http.visibility import event_for
from ajet_server.page.models import RunningTexts
from ajet_server.page.running_texts import RunningReader
from ajet_server.page.token_texts import TokenTexts
from ajet_server.security.credentials import Token
from ajet_server.service import SwarmService

_KEEPALIVE_SECONDS = 15.0
_CONNECTED = ": connected\n\n"
_KEEPALIVE = ": keep-alive\n\n"
# Between two looks at running calls; longer if more than these streams are open.
_LOOK_SECONDS = 0.25
_OFTEN_SEEN = 20
_MOST_LOOK_SECONDS = 2.0


class EventStream(StreamingResponse):
    """Streams lines to the holder of a token, which may have a limited number of streams.

    :param lines: ends once the token is invalid.
    """

    def __init__(self, service: SwarmService, token: Token, lines: AsyncIterator[str]) -> None:
        super().__init__(
            lines, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        self._counted = service.tenants.stream(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)


async def events(service: SwarmService, token: Token, after: int | None) -> AsyncIterator[str]:
    """Yield the events that a token may see."""
    yield _CONNECTED
    async for owned in service.events.read(after, _KEEPALIVE_SECONDS):
        if token.why_dead(time.time()):
            return
        if owned is None:
            yield _KEEPALIVE
        elif (event := event_for(token, owned.event, owned.owner)) is not None:
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"


class RunningStreams:
    """Streams of what running calls write, for any number of viewers."""

    def __init__(self, service: SwarmService) -> None:
        self._service = service
        self._viewers = 0

    async def lines(
        self, episode_id: str, token: Token, texts: Callable[[], TokenTexts]
    ) -> AsyncIterator[str]:
        """Yield what the calls of an open episode write, until it is over.

        :param texts: loads the tokenizer of the run's model, which takes time.
        """
        self._viewers += 1
        try:
            yield _CONNECTED
            reader = RunningReader(await asyncio.to_thread(texts))
            silent_since = time.monotonic()
            while not (self._service.board.closing or token.why_dead(time.time())):
                episode = self._service.episodes.open.get(episode_id)
                if episode is None:
                    yield _data(RunningTexts(calls=[], open=False))
                    return
                look = await episode.look(reader.seen, time.time())
                # Without an answer, nothing is new.
                news = None if look is None else reader.news(look)
                now = time.monotonic()
                if news is not None or now - silent_since >= _KEEPALIVE_SECONDS:
                    yield _KEEPALIVE if news is None else _data(news)
                    silent_since = now
                await asyncio.sleep(self._pace)
        finally:
            self._viewers -= 1

    @property
    def _pace(self) -> float:
        return min(_MOST_LOOK_SECONDS, _LOOK_SECONDS * max(1.0, self._viewers / _OFTEN_SEEN))


def _data(texts: RunningTexts) -> str:
    return f"data: {texts.model_dump_json()}\n\n"
