"""The routes of joint episodes."""

from __future__ import annotations

from ajet_core.protocol import (
    EndRequest,
    EpisodeStatus,
    JointOutcomes,
    JointOutcomesRequest,
    PreparedParts,
)
from ajet_server.http.access import Client, Looker
from ajet_server.http.documented import ENDED, REFUSED
from ajet_server.http.json_route import JsonRoutes
from ajet_server.service import SwarmService


def add_routes(router: JsonRoutes, service: SwarmService) -> None:
    """Add the routes of joint episodes."""

    @router.post(
        "/v1/episodes/{episode_id}/prepare",
        summary="Prepare a part of a joint episode with its reward",
        tags=["joint"],
        responses={**REFUSED, **ENDED},
    )
    async def prepare(episode_id: str, body: EndRequest, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.prepare(episode_id, body)

    @router.post(
        "/v1/episodes/{episode_id}/commit",
        summary="Commit a prepared part after its arbiter has ended",
        tags=["joint"],
        responses=ENDED,
    )
    async def commit(episode_id: str, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.commit(episode_id)

    @router.get("/v1/joint", summary="List the prepared parts of this token", tags=["joint"])
    async def prepared(who: Client) -> PreparedParts:
        return service.joint.prepared(who.token_id)

    @router.post("/v1/joint/outcomes", summary="Get the outcomes of joint episodes", tags=["joint"])
    async def outcomes(body: JointOutcomesRequest, who: Looker) -> JointOutcomes:  # noqa: ARG001 - any valid token
        return await service.joint.outcomes(body.joint_ids, service.coordinator.run_id)
