"""A client that also reads what a server's live page shows."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from agentjet.client import AsyncSwarmClient
from ajet_server.page.models import (
    Conversation,
    EpisodeRows,
    EpisodesQuery,
    StepCurves,
    StepsQuery,
)


class AsyncInspectingClient(AsyncSwarmClient):
    """`AsyncSwarmClient`, with the requests of the live page; they need `view` or `control`."""

    async def list_episodes(self, query: EpisodesQuery) -> EpisodeRows:
        """Return the chosen episodes.

        :raises ForbiddenError: the token is a client's.
        """
        return await self.read(_with_query("/v1/episodes", query), EpisodeRows)

    async def conversation(self, episode_id: str) -> Conversation:
        """Return the messages of an episode.

        :raises EpisodeNotFoundError: no episode has this id.
        :raises ForbiddenError: the token is a client's.
        """
        path = f"/v1/timelines/{quote(episode_id, safe='')}/messages"
        return await self.read(path, Conversation)

    async def curves(self, query: StepsQuery) -> StepCurves:
        """Return metrics over the steps of the run.

        :raises ForbiddenError: the token is a client's.
        """
        return await self.read(_with_query("/v1/steps", query), StepCurves)


def _with_query(path: str, query: EpisodesQuery | StepsQuery) -> str:
    fields = query.model_dump(mode="json", exclude_defaults=True)
    return f"{path}?{urlencode(fields)}" if fields else path
