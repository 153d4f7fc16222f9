"""The live page at ``/ui``, and the routes that it is drawn from.

Anybody may load the page. What it shows needs a token of the scope `view` or `control`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ajet_core.protocol import TokenScope
from ajet_server.http.access import Inspector
from ajet_server.http.event_streams import EventStream, RunningStreams
from ajet_server.http.json_route import JsonRoutes
from ajet_server.http.timeline_routes import episode_record, stored_episode
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import episode_timelines, merge_episode
from ajet_server.page import assets
from ajet_server.page.conversation import conversation
from ajet_server.page.episode_rows import episode_rows
from ajet_server.page.history import NewestStep, StepHistory
from ajet_server.page.models import (
    Conversation,
    EpisodeRows,
    EpisodesQuery,
    Overview,
    StepCurves,
    StepsQuery,
    TaskRows,
    TasksQuery,
)
from ajet_server.page.overview import PollPace, clients, sentence
from ajet_server.page.page_data import PageData
from ajet_server.page.summary import EpisodeSummary
from ajet_server.page.task_rows import task_rows
from ajet_server.page.token_texts import TokenTexts
from ajet_server.security.secrets import without_secrets
from ajet_server.service import SwarmService
from ajet_server.store.run_facts import RunFacts

_JSON = "application/json"
# Viewers of a page that is open in many browsers share an answer.
_SHARED_SECONDS = 1.0


def add_routes(router: JsonRoutes, service: SwarmService) -> None:
    """Add the routes that the page requests."""
    store, coordinator = service.store, service.coordinator
    history = StepHistory(
        store,
        lambda: NewestStep(coordinator.run_id, coordinator.last_step, coordinator.last_step_at),
    )
    shared = _Shared()
    streams = RunningStreams(service)
    # Long histories are read one request after the other: they take memory and the store's time.
    reading = asyncio.Semaphore(1)

    @router.get(
        "/v1/overview",
        summary="Get what the live page shows first",
        tags=["page"],
        model=Overview,
    )
    async def overview(who: Inspector) -> Response:
        return _json(await shared.overview(service, history, who.scope))

    @router.get(
        "/v1/steps",
        summary="Get the metrics of all steps as curves",
        tags=["page"],
        model=StepCurves,
    )
    async def steps(_: Inspector, query: StepsQuery) -> Response:
        return _json(await history.curves(query))

    @router.get("/v1/episodes", summary="List episodes", tags=["page"], model=EpisodeRows)
    async def episodes(_: Inspector, query: EpisodesQuery) -> Response:
        model = RunFacts.of(await store.get_run()).model
        async with reading if query.outputs else contextlib.nullcontext():
            rows = await episode_rows(store, history, query, lambda: _texts(model))
        return _json(rows.model_dump_json().encode())

    @router.get("/v1/tasks", summary="List tasks", tags=["page"], model=TaskRows)
    async def tasks(_: Inspector, query: TasksQuery) -> Response:
        async with reading:
            rows = await task_rows(store, history, query)
        return _json(rows.model_dump_json().encode())

    @router.get(
        "/v1/timelines/{episode_id}/messages",
        summary="Get the messages of an episode",
        tags=["page"],
        model=Conversation,
    )
    async def messages(episode_id: str, _: Inspector) -> Response:
        async with reading:
            stored = await stored_episode(service, episode_id)

            def describe() -> bytes:
                return conversation(stored.record, stored.calls).model_dump_json().encode()

            return _json(await asyncio.to_thread(describe))

    @router.get(
        "/v1/timelines/{episode_id}/running",
        summary="Stream what the running calls of an episode write",
        tags=["page"],
        responses={
            200: {
                "content": {"text/event-stream": {}},
                "description": "Server-sent events with JSON, as docs/page.md says",
            }
        },
    )
    async def running(episode_id: str, who: Inspector) -> StreamingResponse:
        await episode_record(service, episode_id)
        model = RunFacts.of(await store.get_run()).model
        lines = streams.lines(episode_id, who, lambda: _texts(model))
        return EventStream(service, who, lines)

    @router.get(
        "/v1/timelines/{episode_id}/page",
        summary="Get an episode as the viewer of tokens reads it",
        tags=["page"],
        responses={200: {"content": {_JSON: {}}, "description": "Data of the viewer"}},
    )
    async def viewed(episode_id: str, _: Inspector) -> Response:
        async with reading:
            return _json(await _viewed(service, history, episode_id))


def _json(content: bytes) -> Response:
    return Response(content, media_type=_JSON, headers={"cache-control": "no-store"})


def page_files() -> list[Route]:
    """Return the routes of the page's own files."""

    async def file(request: Request) -> Response:
        return assets.response(request.path_params["name"], request.headers.get("if-none-match"))

    async def page(_: Request) -> Response:
        return RedirectResponse("/ui/")

    async def index(request: Request) -> Response:
        return assets.response("index.html", request.headers.get("if-none-match"))

    return [Route("/ui", page), Route("/ui/", index), Route("/ui/{name:path}", file)]


class _Shared:
    """The overview of the last second, by scope."""

    def __init__(self) -> None:
        self._making = asyncio.Lock()
        self._answers: dict[TokenScope, bytes] = {}
        self._until = 0.0
        self._pace = PollPace(time.monotonic)

    async def overview(
        self, service: SwarmService, history: StepHistory, scope: TokenScope
    ) -> bytes:
        self._pace.note()
        async with self._making:
            if time.monotonic() >= self._until:
                self._answers.clear()
            if scope not in self._answers:
                answer = await _overview(service, history, scope, self._pace.seconds)
                self._answers[scope] = answer.model_dump_json().encode()
                self._until = time.monotonic() + _SHARED_SECONDS
            return self._answers[scope]


async def _overview(
    service: SwarmService, history: StepHistory, scope: TokenScope, again_seconds: float
) -> Overview:
    coordinator = service.coordinator
    status = await service.status()
    names = {token.token_id: token.name for token in service.tokens.list()}
    now = time.time()
    config = coordinator.run_status().config if coordinator.run_id else None
    shown = None if config is None else without_secrets(config)
    return Overview(
        scope=scope,
        sentence=sentence(status, now),
        status=status,
        config=None if shown is None else shown.model_dump(mode="json"),
        changed={} if shown is None else shown.model_dump(mode="json", exclude_defaults=True),
        clients=clients(service.episodes.open, names, now),
        seconds_per_step=history.seconds_per_step,
        time=now,
        again_seconds=again_seconds,
    )


@lru_cache(maxsize=2)
def _texts(model: Path | None) -> TokenTexts:
    return TokenTexts.load(model)


async def _viewed(service: SwarmService, history: StepHistory, episode_id: str) -> bytes:
    stored = await stored_episode(service, episode_id)
    stored = replace(stored, step=await history.step_of(stored.record.batch_id))
    run = await service.store.get_run()
    facts = RunFacts.of(run)

    def describe() -> bytes:
        merger = RunMerger.of(run, service.plugins, service.settings.server.run_dir)
        merged = merge_episode(episode_id, stored.calls, merger)
        data = PageData(f"Episode {episode_id}", facts.run_id, _texts(facts.model))
        timelines = episode_timelines(stored.record, merged, stored.scores)
        data.add(EpisodeSummary.of(stored, merged), timelines)
        return assets.as_json(data.as_json([]))

    return await asyncio.to_thread(describe)
