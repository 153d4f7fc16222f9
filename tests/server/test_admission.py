"""Which claims get an episode, and when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ajet_core.errors import AuthError, BusyError, EpisodeError, NotRollingError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import ClaimRequest, ServerState
from ajet_server.admission.admission import RELIEF_SECONDS, Admission
from ajet_server.admission.waiting import Granted
from ajet_server.episodes.open_episodes import OpenEpisodes
from ajet_server.observe.events import EventLog
from ajet_server.security.credentials import TokenBook
from ajet_server.security.tenants import TenantLimits, Tenants
from ajet_server.state import StateBoard
from tests.support.batches import builder


@dataclass
class Server:
    """An admission in state ROLLING, with a batch of two tasks of two episodes each.

    :ivar now: the time by its clocks.
    """

    run_dir: Path
    open_episodes: int = 100
    now: float = 0.0
    board: StateBoard = field(init=False)
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        def clock() -> float:
            return self.now

        events = EventLog(clock)
        self.board = StateBoard(events, clock)
        limits = TenantLimits(self.open_episodes, 2, 10, 10, 10)
        self.admission = Admission(
            self.board,
            events,
            Tenants(TokenBook(self.run_dir), limits),
            clock=clock,
            idle_seconds=OpenEpisodes(clock, clock).still,
            wall_clock=clock,
        )
        self.admission.begin(builder(max_aborts_per_task=1))
        self.board.set(ServerState.ROLLING)

    async def ask(self, task: str, **more: object) -> asyncio.Task[Granted]:
        """A claim that waits or is answered."""
        request = ClaimRequest.model_validate({"task_id": task, **more})
        before = self.admission.waiting_count
        asked = asyncio.create_task(self.admission.wait_for_slot(request, "client"))
        while not asked.done() and self.admission.waiting_count == before:
            await asyncio.sleep(0)
        return asked

    async def open(self, task: str) -> EpisodeRecord:
        """An admitted episode."""
        return (await (await self.ask(task))).record


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


async def test_a_claim_without_a_place_gets_that_of_an_episode_that_never_began(
    server: Server,
) -> None:
    first, _ = await server.open("a"), await server.open("a")
    waits = await server.ask("a")
    assert not waits.done()
    server.admission.withdraw(first)
    assert (await waits).record.task_id == "a"


async def test_a_claim_waits_no_longer_than_it_says(server: Server) -> None:
    await server.open("a")
    await server.open("a")
    with pytest.raises(NotRollingError, match="the current batch has no free slot for it"):
        await (await server.ask("a", wait_seconds=0.0))


async def test_claims_are_refused_when_no_run_is_active(server: Server) -> None:
    await server.open("a")
    await server.open("a")
    waits = await server.ask("a")
    server.board.set(ServerState.OFFLINE)
    with pytest.raises(NotRollingError, match="no run is active"):
        await waits


async def test_the_place_of_a_silent_client_is_given_away(server: Server) -> None:
    first, _ = await server.open("a"), await server.open("a")
    waits = await server.ask("a")
    server.admission.silent([first])
    assert (await waits).record.task_id == "a"


async def test_claims_for_a_task_that_is_quarantined_are_refused(server: Server) -> None:
    first, second = await server.open("a"), await server.open("a")
    server.admission.over(replace(first, state="aborted", cause="error", reason="no tool"))
    await server.open("a")
    waits = await server.ask("a")
    server.admission.over(replace(second, state="aborted", cause="error", reason="no tool"))
    with pytest.raises(EpisodeError, match="no tool"):
        await waits
    with pytest.raises(EpisodeError, match="quarantined"):
        await server.open("a")


async def test_claims_of_a_dead_token_are_refused(server: Server) -> None:
    await server.open("a")
    await server.open("a")
    waits = await server.ask("a")
    server.admission.drop("client", "it was revoked")
    with pytest.raises(AuthError, match="revoked"):
        await waits


async def test_no_more_claims_wait_than_the_limit(server: Server) -> None:
    await server.open("a")
    await server.open("a")
    await server.ask("a")
    await server.ask("a")
    with pytest.raises(BusyError, match="2 claims are waiting"):
        await server.open("a")


async def test_no_more_episodes_are_admitted_than_the_limit(tmp_path: Path) -> None:
    server = Server(tmp_path, open_episodes=1)
    await server.open("a")
    with pytest.raises(BusyError, match="1 episodes are open"):
        await server.open("b")


async def test_evaluation_episodes_need_no_place(server: Server) -> None:
    for task in "aabb":
        await server.open(task)
    assert (await (await server.ask("c", kind="eval"))).record.kind == "eval"


async def test_a_claim_for_a_complete_task_is_granted_once_nothing_moves(server: Server) -> None:
    for episode in (await server.open("a"), await server.open("a")):
        server.admission.over(replace(episode, state="ended", reward=1.0))
    waits = await server.ask("a")
    server.admission.relieve()
    assert server.admission.waiting_count == 1
    server.now = RELIEF_SECONDS
    server.admission.relieve()
    assert (await waits).record.task_id == "a"
