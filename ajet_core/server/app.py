"""The HTTP application: routes, who may call them, and nothing that thinks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ajet_core import __version__
from ajet_core.errors import AjetError, VersionError
from ajet_core.protocol import (
    PROTOCOL_HEADER,
    SUPPORTED_VERSIONS,
    AbortRequest,
    ClaimRequest,
    EndRequest,
    EpisodeGrant,
    EpisodeStatus,
    ErrorBody,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    PauseRequest,
    ProtocolInfo,
    RunConfig,
    RunStatus,
    ServerStatus,
    StartRequest,
    negotiate,
)
from ajet_core.server import http_errors, llm_routes, timeline_routes
from ajet_core.server.auth import Scope, TokenGuard
from ajet_core.server.disconnect import until_disconnect
from ajet_core.server.limits import BodyLimit
from ajet_core.server.service import SwarmService
from ajet_core.server.short_cut import ShortCut, json_endpoint
from ajet_core.server.token_first import TokenFirst

_KEEPALIVE_SECONDS = 15.0

_ERRORS: dict[int | str, dict[str, object]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be served; the error says why."},
    "5XX": {"model": ErrorBody, "description": "The server cannot serve it now."},
}


# Dependencies are coroutines though they await nothing: FastAPI would run functions on threads.
def _needs(scope: Scope) -> Callable[[Request], Awaitable[Scope]]:
    async def check(request: Request) -> Scope:
        guard: TokenGuard = request.app.state.guard
        return guard.check(request.headers, scope)

    return check


async def _check_version(request: Request) -> None:
    """A client that names a protocol version must name one we speak."""
    spoken = request.headers.get(PROTOCOL_HEADER)
    if spoken is None:
        return
    try:
        common = negotiate([spoken])
    except ValueError as error:
        raise VersionError(str(error), param=PROTOCOL_HEADER) from error
    if common is None:
        raise VersionError(
            f"this server speaks protocol {', '.join(SUPPORTED_VERSIONS)}, the client {spoken}: "
            "install a client of the same major version",
            param=PROTOCOL_HEADER,
        )


Client = Annotated[Scope, Depends(_needs("client"))]
Control = Annotated[Scope, Depends(_needs("control"))]


def create_app(
    service: SwarmService, guard: TokenGuard, *, max_body_bytes: int, public_url: str | None = None
) -> FastAPI:
    """The application of one server.

    :param public_url: base of the URLs that clients are handed; by default the one they called.
    """

    app = FastAPI(
        title="agentjet swarm server",
        version=__version__,
        description="The swarm protocol, version 1.",
        docs_url=None,
        redoc_url=None,
        # OpenTelemetry's look for a provider is made for every request and cost 17 % of a call; agentjet
        # has metrics and events of its own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # A missing content type is taken for JSON: every body of this protocol is.
        strict_content_type=False,
        dependencies=[Depends(_check_version)],
        responses=_ERRORS,
    )
    app.state.guard = guard
    app.state.service = service
    app.add_exception_handler(AjetError, http_errors.on_ajet_error)
    app.add_exception_handler(RequestValidationError, http_errors.on_validation_error)
    app.add_exception_handler(HTTPException, http_errors.on_http_exception)
    app.add_exception_handler(Exception, http_errors.on_unexpected)
    chat = llm_routes.add_routes(app, service)
    claim_and_end = _add_episode_routes(app, service, public_url)
    _add_run_routes(app, service)
    _add_view_routes(app, service)
    timeline_routes.add_routes(app, service.store, _needs("control"))
    # The last one is the first that a request meets.
    app.add_middleware(ShortCut, routes=[chat, *claim_and_end])
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    app.add_middleware(TokenFirst, guard=guard)
    _document_llm_routes(app)
    return app


def _document_llm_routes(app: FastAPI) -> None:
    """Add the routes that FastAPI does not know of to its OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["paths"].update(llm_routes.OPENAPI_PATHS)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_episode_routes(app: FastAPI, service: SwarmService, public_url: str | None) -> list[Route]:
    """Add the routes of episodes.

    :return: those for `ShortCut`.
    """
    client = _needs("client")

    @app.post("/v1/episodes", summary="Claim an episode", tags=["episodes"])
    async def claim(request: Request, body: ClaimRequest, scope: Client) -> EpisodeGrant:
        base = (public_url or str(request.base_url)).rstrip("/")
        return await until_disconnect(request, service.claim(body, scope, f"{base}/v1"))

    @app.post("/v1/heartbeats", summary="Renew the leases of many", tags=["episodes"])
    async def heartbeats(body: HeartbeatsRequest, scope: Client) -> Heartbeats:
        return await service.heartbeats(body, scope)

    @app.post("/v1/groups", summary="How many episodes groups have", tags=["episodes"])
    async def groups(body: GroupCountsRequest, scope: Client) -> GroupCountsAnswer:
        return await service.group_counts(body, scope)

    @app.post("/v1/episodes/{episode_id}/end", summary="End it with its reward", tags=["episodes"])
    async def end(episode_id: str, body: EndRequest, _: Client) -> EpisodeStatus:
        return await service.end(episode_id, body)

    @app.post("/v1/episodes/{episode_id}/abort", summary="Give it up", tags=["episodes"])
    async def abort(episode_id: str, body: AbortRequest, _: Client) -> EpisodeStatus:
        return await service.abort(episode_id, body)

    @app.post("/v1/episodes/{episode_id}/heartbeat", summary="Renew its lease", tags=["episodes"])
    async def heartbeat(episode_id: str, _: Client) -> EpisodeStatus:
        return await service.heartbeat(episode_id)

    @app.get("/v1/episodes/{episode_id}", summary="How it stands", tags=["episodes"])
    async def episode(episode_id: str, _: Client) -> EpisodeStatus:
        return await service.episode(episode_id)

    async def claim_at_once(request: Request, body: ClaimRequest) -> EpisodeGrant:
        return await claim(request, body, await client(request))

    async def end_at_once(request: Request, body: EndRequest) -> EpisodeStatus:
        return await end(request.path_params["episode_id"], body, await client(request))

    return [
        Route("/v1/episodes", json_endpoint(ClaimRequest, claim_at_once), methods=["POST"]),
        Route(
            "/v1/episodes/{episode_id}/end",
            json_endpoint(EndRequest, end_at_once),
            methods=["POST"],
        ),
    ]


def _add_run_routes(app: FastAPI, service: SwarmService) -> None:
    @app.put("/v1/run", summary="Configure the run", tags=["run"])
    async def configure(body: RunConfig, _: Control) -> RunStatus:
        return await service.coordinator.configure(body)

    @app.get("/v1/run", summary="The configured run", tags=["run"])
    async def run(_: Client) -> RunStatus:
        return service.coordinator.run_status()

    @app.post("/v1/run/start", summary="Start it", tags=["run"])
    async def start(_: Control, body: Annotated[StartRequest | None, Body()] = None) -> RunStatus:
        return await service.coordinator.start((body or StartRequest()).wait_seconds)

    @app.post("/v1/run/pause", summary="Give out no more episodes", tags=["run"])
    async def pause(_: Control, body: Annotated[PauseRequest | None, Body()] = None) -> RunStatus:
        return await service.coordinator.pause((body or PauseRequest()).reason)

    @app.post("/v1/run/resume", summary="Go on after a pause", tags=["run"])
    async def resume(_: Control) -> RunStatus:
        return await service.coordinator.resume()

    @app.post("/v1/run/stop", summary="Stop it: checkpoint and export", tags=["run"])
    async def stop(_: Control) -> RunStatus:
        return await service.coordinator.stop()


def _add_view_routes(app: FastAPI, service: SwarmService) -> None:
    @app.get("/v1/protocol", summary="What this server is", tags=["server"])
    async def protocol() -> ProtocolInfo:
        return ProtocolInfo(versions=list(SUPPORTED_VERSIONS), server_version=__version__)

    @app.get("/v1/status", summary="What it is doing", tags=["server"])
    async def status(_: Client) -> ServerStatus:
        return await service.status()

    @app.get(
        "/v1/events",
        summary="What happens, as it happens",
        tags=["server"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}
        },
    )
    async def events(
        _: Client, last_event_id: Annotated[int | None, Header(ge=0)] = None
    ) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            yield ": connected\n\n"
            async for event in service.events.read(last_event_id, _KEEPALIVE_SECONDS):
                if event is None:
                    yield ": keep-alive\n\n"
                else:
                    yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"

        return StreamingResponse(
            lines(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
