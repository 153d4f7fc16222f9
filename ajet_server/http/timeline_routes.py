"""The route that returns an episode's token tree to tokens that may see all episodes."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from ajet_core.errors import EpisodeNotFoundError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import EpisodeTimelines
from ajet_server.http.access import Inspector
from ajet_server.http.json_route import JsonRoutes
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import episode_timelines, merge_episode
from ajet_server.service import SwarmService
from ajet_server.store.store_reader import StoredEpisode


def add_routes(router: JsonRoutes, service: SwarmService) -> None:
    """Add ``GET /v1/timelines/{episode_id}``; its tree holds everything that agents sent."""

    @router.get(
        "/v1/timelines/{episode_id}",
        summary="Get the calls of an episode as a tree of tokens",
        tags=["episodes"],
        model=EpisodeTimelines,
    )
    async def timelines(episode_id: str, _: Inspector) -> Response:
        content = await timelines_json(service, episode_id)
        return Response(content, media_type="application/json")


async def timelines_json(service: SwarmService, episode_id: str) -> str:
    """Return the `EpisodeTimelines` of a stored episode, as JSON.

    :raises EpisodeNotFoundError: no episode has this id.
    :raises PluginError: the run's merger cannot be used.
    """
    stored = await stored_episode(service, episode_id)
    run = await service.store.get_run()

    def write() -> str:
        merger = RunMerger.of(run, service.plugins, service.settings.server.run_dir)
        merged = merge_episode(episode_id, stored.calls, merger)
        return episode_timelines(stored.record, merged, stored.scores).model_dump_json()

    # Long episodes are megabytes of JSON: they must not block other requests.
    return await asyncio.to_thread(write)


async def stored_episode(service: SwarmService, episode_id: str) -> StoredEpisode:
    """Return an episode with its calls; its step is not looked up.

    :raises EpisodeNotFoundError: no episode has this id.
    """
    record = await episode_record(service, episode_id)
    calls = (await service.store.calls([episode_id]))[episode_id]
    return StoredEpisode(record, None, calls, await service.store.scores(episode_id))


async def episode_record(service: SwarmService, episode_id: str) -> EpisodeRecord:
    """Return the record of a stored episode.

    :raises EpisodeNotFoundError: no episode has this id.
    """
    record = await service.store.get_episode(episode_id)
    if record is None:
        raise EpisodeNotFoundError(f"this server has no episode {episode_id}")
    return record
