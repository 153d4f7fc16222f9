"""Real servers without workers, and a faulty network between them and a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from agentjet.client import AsyncSwarm
from ajet_core.credentials import ServerTokens
from ajet_core.interfaces import EpisodeRecord, RunRecord
from ajet_core.plugin import PluginManager
from ajet_core.protocol import RunConfig, ServerState
from ajet_installation.settings import PeerSettings, Settings
from ajet_server.admission.batching import BatchBuilder
from ajet_server.build import build_service
from ajet_server.episodes.joint_peers import JointPeers
from ajet_server.http.app import create_app
from ajet_server.security.guard import TokenGuard
from ajet_server.service import SwarmService

ROLES = ("executor", "planner")
ARBITER = "executor"


class ClientDiedError(BaseException):
    """The client is killed: it does nothing more, not even tidy up."""


@dataclass
class Server:
    """One server on one run directory; what it runs is there from its first start on.

    :ivar peers: as `ServerSettings.peers`.
    """

    role: str
    run_dir: Path
    network: Network
    size: int = 2
    peers: Mapping[str, PeerSettings] = field(default_factory=dict)
    service: SwarmService = field(init=False)

    @property
    def tokens(self) -> ServerTokens:
        return ServerTokens(control=f"control-of-{self.role}", client=f"client-of-{self.role}")

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens.client}"}

    async def start(self) -> None:
        """Start it; what it served before is taken up."""
        settings = Settings(server={"run_dir": self.run_dir, "port": 0})
        self.service = service = build_service(settings, PluginManager())
        await service.store.open()
        service.tokens.open()
        batch = {"tasks": 4, "episodes_per_task": self.size}
        config = RunConfig.model_validate({"model": {"path": "none"}, "batch": batch})
        if await service.store.get_run() is None:
            run = RunRecord(f"run-of-{self.role}", config.model_dump_json(), 1.0)
            await service.store.put_run(run)
        await service.episodes.restore()
        await service.coordinator.restore()
        service.episodes.begin(BatchBuilder(config.batch))
        service.board.set(ServerState.ROLLING)
        service.peers = JointPeers(
            service.joint,
            service.episodes.prepared,
            self.peers,
            patience=0.0,
            transport=self.network,
        )
        app = create_app(service, TokenGuard(self.tokens, service.tokens))
        self.network.servers[f"{self.role}.test"] = httpx2.ASGITransport(app)

    async def stop(self) -> None:
        """End it as a crash does: nothing is told to anybody, and what is in memory is gone."""
        self.network.servers.pop(f"{self.role}.test")
        await self.service.store.close()
        self.service.tokens.close()

    async def restart(self) -> None:
        """A crash, and a start by the same command."""
        await self.stop()
        await self.start()

    async def records(self) -> list[EpisodeRecord]:
        """All its episodes."""
        return await self.service.store.episodes()

    async def post(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        """A request that the network leaves alone."""
        server = self.network.servers[f"{self.role}.test"]
        async with httpx2.AsyncClient(transport=server, base_url=self.url) as http:
            return await http.post(path, json=body, headers=headers or self.headers())

    async def get(self, path: str, headers: dict[str, str] | None = None) -> httpx2.Response:
        """As `post`."""
        server = self.network.servers[f"{self.role}.test"]
        async with httpx2.AsyncClient(transport=server, base_url=self.url) as http:
            return await http.get(path, headers=headers or self.headers())

    @property
    def url(self) -> str:
        return f"http://{self.role}.test"


class Network(httpx2.AsyncBaseTransport):
    """Carries requests to servers by host.

    :ivar fault: what happens to a request: "" nothing, ``lost``, ``answer lost``, or ``client
        dies``, after which it sends nothing more.
    :ivar seen: all requests, as "host METHOD path".
    """

    def __init__(self) -> None:
        self.servers: dict[str, httpx2.ASGITransport] = {}
        self.fault: Callable[[httpx2.Request], Awaitable[str]] | None = None
        self.seen: list[str] = []
        self.dead = False

    def heal(self) -> None:
        """Nothing goes wrong any more, and another client is there."""
        self.fault, self.dead = None, False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Carry one."""
        if self.dead:
            raise ClientDiedError
        self.seen.append(f"{request.url.host} {request.method} {request.url.path}")
        what = await self.fault(request) if self.fault is not None else ""
        server = self.servers.get(request.url.host)
        if what == "lost" or server is None:
            raise httpx2.ConnectError("nobody there", request=request)
        answer = await server.handle_async_request(request)
        body = await answer.aread()
        if what == "client dies":
            self.dead = True
            raise ClientDiedError
        if what == "answer lost":
            raise httpx2.ReadError("connection reset", request=request)
        return httpx2.Response(answer.status_code, headers=answer.headers, content=body)


@dataclass
class World:
    """Two servers and the network."""

    network: Network
    servers: dict[str, Server]

    def __getitem__(self, role: str) -> Server:
        return self.servers[role]

    def swarm(self, **options: Any) -> AsyncSwarm:
        """A client of both."""

        async def sleep(_seconds: float) -> None:
            return None

        return AsyncSwarm(
            {role: server.url for role, server in self.servers.items()},
            {role: server.tokens.client for role, server in self.servers.items()},
            transport=self.network,
            sleep=sleep,
            **{"retries": 2, **options},
        )

    async def states(self) -> dict[str, list[str]]:
        """The states of the episodes of each server, in the order of their claims."""
        return {
            role: [record.state for record in await server.records()]
            for role, server in self.servers.items()
        }

    async def expire(self) -> None:
        """Let all leases run out."""
        for server in self.servers.values():
            await server.service.episodes.abort_all("lease expired", "lease_expired")


def make_world(network: Network, directory: Path, roles: Sequence[str] = ROLES) -> World:
    """Two servers, or as many as there are roles, not started."""
    servers = {role: Server(role, directory / role, network) for role in roles}
    world = World(network, servers)
    for server in servers.values():
        server.peers = {
            other.role: PeerSettings(url=other.url, token=other.tokens.client, insecure=True)
            for other in servers.values()
            if other is not server
        }
    return world


OTHER = "planner"
JOINT_ID = "j" * 32


def part(role: str, joint_id: str = JOINT_ID, **changes: Any) -> dict[str, Any]:
    joint = {
        "joint_id": joint_id,
        "role": role,
        "arbiter": ARBITER,
        "arbiter_run": f"run-of-{ARBITER}",
        **changes,
    }
    return {"task_id": "a", "wait_seconds": 0, "joint": joint}


async def claim(world: World, role: str, **changes: Any) -> str:
    answer = await world[role].post("/v1/episodes", part(role, **changes))
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["episode_id"]
    return found


async def prepared(world: World) -> str:
    await claim(world, ARBITER)
    episode = await claim(world, OTHER)
    answer = await world[OTHER].post(f"/v1/episodes/{episode}/prepare", {"reward": 0.5})
    assert (answer.status_code, answer.json()["state"]) == (200, "prepared")
    return episode
