"""The HTTP application: its routes and the access that each requires.

The services that the routes call hold the logic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from ajet_core import __version__
from ajet_core.errors import AjetError
from ajet_core.protocol import (
    SUPPORTED_VERSIONS,
    AbortRequest,
    BudgetConfig,
    ClaimRequest,
    EndRequest,
    EngineServer,
    EngineServers,
    EpisodeGrant,
    EpisodeStatus,
    EvaluationList,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    MixtureConfig,
    MixtureStatus,
    Pace,
    PauseRequest,
    ProtocolInfo,
    ResumeRequest,
    RunConfig,
    RunStatus,
    ServerStatus,
    SpendingReceipt,
    SpendingReport,
    StartRequest,
)
from ajet_installation.settings import ServerSettings
from ajet_server.http import (
    credential_routes,
    http_errors,
    joint_routes,
    llm_routes,
    page_routes,
    timeline_routes,
)
from ajet_server.http.access import Client, Control, Looker, peer_of
from ajet_server.http.auth_middleware import METRICS_PATH, AuthMiddleware
from ajet_server.http.disconnect import until_disconnect
from ajet_server.http.documented import ENDED, ERRORS, REFUSED, openapi_document
from ajet_server.http.event_streams import EventStream
from ajet_server.http.event_streams import events as stream_of_events
from ajet_server.http.json_route import FromHeader, JsonRoutes
from ajet_server.http.limits import BodyLimit
from ajet_server.http.model_service import ModelService
from ajet_server.http.visibility import (
    engine_metrics_for,
    evaluations_for,
    mixture_for,
    run_for,
    status_for,
)
from ajet_server.security.audit import AuditLog
from ajet_server.security.guard import TokenGuard
from ajet_server.security.throttle import Throttled
from ajet_server.service import SwarmService

_LastEventId = Annotated[int, Field(ge=0), FromHeader("last-event-id")]


EXCEPTION_HANDLERS: dict[Any, Callable[[Request, Exception], Any]] = {
    AjetError: http_errors.on_ajet_error,
    ClientDisconnect: http_errors.on_client_gone,
    HTTPException: http_errors.on_http_exception,
    Exception: http_errors.on_unexpected,
}
"""What becomes of an exception of a route, by its class."""


def model_service(service: SwarmService) -> ModelService:
    """Return what agents' routes need of a server that answers their calls itself."""
    return ModelService(
        settings=service.settings.server,
        board=service.board,
        episodes=service.episodes,
        run=service.coordinator,
        add_call=service.store.add_call,
        started_at=service.started_at,
        # It may be replaced later.
        silence=lambda seconds: service.silence(seconds),  # noqa: PLW0108
        telemetry=service.telemetry,
    )


def create_app(service: SwarmService, guard: TokenGuard) -> Starlette:
    """Create the application of one server."""
    settings = service.settings.server
    audit = AuditLog(settings.run_dir.resolve())
    router = JsonRoutes(responses=ERRORS)
    # They are compared in this order: first those with most of the requests.
    if not settings.divided:
        llm_routes.add_routes(router.routes, model_service(service))
    elif settings.gateways_listen is not None:
        llm_routes.refuse_calls(router.routes, f"{settings.public_url}/v1")
    _add_episode_routes(router, service, settings.public_url)
    _add_run_routes(router, service, audit)
    _add_view_routes(router, service)
    joint_routes.add_routes(router, service)
    timeline_routes.add_routes(router, service)
    page_routes.add_routes(router, service)
    credential_routes.add_routes(router, service, audit)
    described = functools.cache(lambda: openapi_document(router.routes))

    async def document(_: Request) -> JSONResponse:
        return JSONResponse(described())

    app = Starlette(
        routes=[*router.routes, Route("/openapi.json", document), *page_routes.page_files()],
        middleware=[
            Middleware(AuthMiddleware, guard=guard, tenants=service.tenants, audit=audit),
            _body_limit(settings),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.service = service
    app.state.throttled = service.throttled
    app.state.audit = audit
    return app


def create_calls_app(
    service: ModelService, throttled: Throttled, *inner: Middleware, routes: Iterable[Route] = ()
) -> Starlette:
    """Create the application of a gateway, which has only the routes of agents.

    :param throttled: is called for requests that were refused with 429.
    :param inner: middleware behind the limits on bodies.
    :param routes: added to those of agents.
    """
    of_agents: list[BaseRoute] = []
    llm_routes.add_routes(of_agents, service)
    app = Starlette(
        routes=[*of_agents, *routes],
        middleware=[_body_limit(service.settings), *inner],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.throttled = throttled
    return app


def _body_limit(settings: ServerSettings) -> Middleware:
    return Middleware(
        BodyLimit, max_bytes=settings.max_body_bytes, max_in_flight=settings.max_bytes_in_flight
    )


def _add_episode_routes(router: JsonRoutes, service: SwarmService, public_url: str | None) -> None:
    @router.post(
        "/v1/episodes",
        summary="Claim an episode",
        tags=["episodes"],
        responses={**REFUSED, **ENDED},
    )
    async def claim(request: Request, body: ClaimRequest, who: Client) -> EpisodeGrant:
        base = (public_url or str(request.base_url)).rstrip("/")
        claiming = service.claim(body, who.token_id, f"{base}/v1")
        if service.telemetry is None:
            return await until_disconnect(request, claiming)
        with service.telemetry.claim(request.headers) as granted:
            grant = await until_disconnect(request, claiming)
            granted.append(grant.episode_id)
        return grant

    @router.post(
        "/v1/heartbeats", summary="Renew the leases of several episodes", tags=["episodes"]
    )
    async def heartbeats(body: HeartbeatsRequest, who: Client) -> Heartbeats:
        return await service.heartbeats(body, who.token_id)

    @router.get("/v1/pace", summary="Ask how to run episodes", tags=["episodes"])
    async def pace(_: Client) -> Pace:
        return service.pace()

    @router.post(
        "/v1/groups", summary="Count the episodes of groups", tags=["episodes"], responses=REFUSED
    )
    async def groups(body: GroupCountsRequest, who: Client) -> GroupCountsAnswer:
        return await service.group_counts(body, who.token_id)

    @router.post(
        "/v1/spending",
        summary="Report what was paid to another service",
        tags=["episodes"],
        responses=REFUSED,
    )
    async def spending(body: SpendingReport, who: Client) -> SpendingReceipt:
        if body.episode_id is not None:
            await service.check_owner(body.episode_id, who)
        return await service.report_spending(body, who.token_id)

    @router.post(
        "/v1/episodes/{episode_id}/end",
        summary="End an episode with its reward",
        tags=["episodes"],
        responses={**REFUSED, **ENDED},
    )
    async def end(episode_id: str, body: EndRequest, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.end(episode_id, body)

    @router.post(
        "/v1/episodes/{episode_id}/abort",
        summary="Abort an episode",
        tags=["episodes"],
        responses=ENDED,
    )
    async def abort(episode_id: str, body: AbortRequest, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.abort(episode_id, body)

    @router.post(
        "/v1/episodes/{episode_id}/heartbeat",
        summary="Renew the lease of an episode",
        tags=["episodes"],
        responses=ENDED,
    )
    async def heartbeat(episode_id: str, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.heartbeat(episode_id)

    @router.post(
        "/v1/episodes/{episode_id}/end_calls",
        summary="Refuse further model calls of an open episode",
        tags=["episodes"],
        responses=ENDED,
    )
    async def end_calls(episode_id: str, who: Client) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.end_calls(episode_id)

    @router.get(
        "/v1/episodes/{episode_id}", summary="Get the status of an episode", tags=["episodes"]
    )
    async def episode(episode_id: str, who: Looker) -> EpisodeStatus:
        await service.check_owner(episode_id, who)
        return await service.episode(episode_id)


def _add_run_routes(router: JsonRoutes, service: SwarmService, audit: AuditLog) -> None:
    @router.put("/v1/run", summary="Configure the run", tags=["run"], responses=REFUSED)
    async def configure(request: Request, body: RunConfig, who: Control) -> RunStatus:
        async with audit.action(
            "run.configure",
            who.token_id,
            peer_of(request),
            model=body.model.path,
            engine=body.engine.name,
            trainer=body.trainer.name,
        ):
            return await service.coordinator.configure(body)

    @router.get("/v1/run", summary="Get the configured run", tags=["run"])
    async def run(who: Looker) -> RunStatus:
        return run_for(who, service.coordinator.run_status())

    @router.post("/v1/run/start", summary="Start it", tags=["run"])
    async def start(request: Request, who: Control, body: StartRequest | None = None) -> RunStatus:
        async with audit.action("run.start", who.token_id, peer_of(request)):
            return await service.coordinator.start((body or StartRequest()).wait_seconds)

    @router.post("/v1/run/pause", summary="Pause the run: open no more episodes", tags=["run"])
    async def pause(request: Request, who: Control, body: PauseRequest | None = None) -> RunStatus:
        async with audit.action("run.pause", who.token_id, peer_of(request)):
            return await service.coordinator.pause((body or PauseRequest()).reason)

    @router.post(
        "/v1/run/resume", summary="Resume the run after a pause", tags=["run"], responses=REFUSED
    )
    async def resume(
        request: Request, who: Control, body: ResumeRequest | None = None
    ) -> RunStatus:
        asked = body or ResumeRequest()
        back = {} if asked.from_step is None else {"from_step": str(asked.from_step)}
        async with audit.action("run.resume", who.token_id, peer_of(request), **back):
            return await service.coordinator.resume(asked)

    @router.post(
        "/v1/run/preflight", summary="Check the next batch before it is trained", tags=["run"]
    )
    async def preflight(request: Request, who: Control) -> RunStatus:
        async with audit.action("run.preflight", who.token_id, peer_of(request)):
            return await service.coordinator.preflight()

    @router.post(
        "/v1/run/stop", summary="Stop the run: save a checkpoint and export the model", tags=["run"]
    )
    async def stop(request: Request, who: Control) -> RunStatus:
        async with audit.action("run.stop", who.token_id, peer_of(request)):
            return await service.coordinator.stop()

    @router.get("/v1/mixture", summary="Get the mixture of tags", tags=["run"])
    async def mixture(who: Looker) -> MixtureStatus:
        return mixture_for(who, service.coordinator.mixture_status())

    @router.put(
        "/v1/mixture",
        summary="Change the mixture from the next batch on",
        tags=["run"],
        responses=REFUSED,
    )
    async def change_mixture(request: Request, body: MixtureConfig, who: Control) -> MixtureStatus:
        async with audit.action("mixture.change", who.token_id, peer_of(request)):
            return await service.coordinator.change_mixture(body)

    @router.put("/v1/budget", summary="Change the budget", tags=["run"], responses=REFUSED)
    async def change_budget(request: Request, body: BudgetConfig, who: Control) -> BudgetConfig:
        limits = {name: str(value) for name, value in body.model_dump().items()}
        async with audit.action("budget.change", who.token_id, peer_of(request), **limits):
            return await service.coordinator.change_budget(body)

    @router.get("/v1/engine/servers", summary="List the engine's model servers", tags=["run"])
    async def servers(_: Control) -> EngineServers:
        return await service.coordinator.engine_servers()

    @router.post(
        "/v1/engine/servers/add",
        summary="Add a model server to the engine",
        tags=["run"],
        responses=REFUSED,
    )
    async def add_server(request: Request, body: EngineServer, who: Control) -> EngineServers:
        async with audit.action("engine.add", who.token_id, peer_of(request), url=body.url):
            return await service.coordinator.change_servers(add=body.url)

    @router.post(
        "/v1/engine/servers/remove",
        summary="Remove a model server from the engine",
        tags=["run"],
        responses=REFUSED,
    )
    async def remove_server(request: Request, body: EngineServer, who: Control) -> EngineServers:
        async with audit.action("engine.remove", who.token_id, peer_of(request), url=body.url):
            return await service.coordinator.change_servers(remove=body.url)


def _add_view_routes(router: JsonRoutes, service: SwarmService) -> None:
    @router.get("/v1/protocol", summary="Get the protocol and server versions", tags=["server"])
    async def protocol() -> ProtocolInfo:
        return ProtocolInfo(versions=list(SUPPORTED_VERSIONS), server_version=__version__)

    @router.get("/v1/status", summary="Get the status of the server", tags=["server"])
    async def status(who: Looker) -> ServerStatus:
        return status_for(who, await service.status())

    @router.get("/v1/evaluations", summary="Get the results of evaluations", tags=["server"])
    async def evaluations(who: Looker) -> EvaluationList:
        return EvaluationList(evaluations=evaluations_for(who, service.evaluations.all()))

    @router.get(
        METRICS_PATH,
        summary="Get the status and the engine's metrics for Prometheus",
        tags=["server"],
        responses={200: {"content": {"text/plain": {}}, "description": "Text exposition format"}},
    )
    async def metrics(who: Looker) -> Response:
        # Imported here, so that a server that is never scraped does not load the library.
        from ajet_server.observe.prometheus import CONTENT_TYPE, exposition

        text = exposition(status_for(who, await service.status()))
        engine = engine_metrics_for(who, await service.engine_metrics())
        return Response(text + engine.encode(), media_type=CONTENT_TYPE)

    @router.get(
        "/v1/events",
        summary="Stream events as they happen",
        tags=["server"],
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}
        },
    )
    async def events(who: Looker, last_event_id: _LastEventId | None = None) -> StreamingResponse:
        return EventStream(service, who, stream_of_events(service, who, last_event_id))
