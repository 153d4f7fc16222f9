"""Learning a world on a real server with a scripted model: claims, counts and reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentjet.client import AsyncSwarmClient, SwarmClient
from ajet_core.errors import AjetError
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_worlds.learning import Learned, learn
from tests.worlds.outside import CoinSettings, CoinWorld

pytest.importorskip("openai")

pytestmark = pytest.mark.processes

ANSWERS = (
    ScriptedReply(prompt="heads is up", says=("heads<|im_end|>",)),
    ScriptedReply(prompt=" is up", says=("edge<|im_end|>",)),
)
"""Right where heads or the edge is up."""


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[ScriptedSwarm]:
    with ScriptedSwarm(tmp_path, ANSWERS) as swarm:
        yield swarm


@pytest.fixture
def observer(swarm: ScriptedSwarm) -> Iterator[SwarmClient]:
    with SwarmClient(swarm.url, swarm.tokens.control) as observer:
        yield observer


async def learned(
    swarm: ScriptedSwarm, observer: SwarmClient, sides: tuple[str, ...], steps: int
) -> Learned:
    world = CoinWorld(CoinSettings(sides=sides))
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        return await learn(world, client, observer, seed=0, steps=steps, eval_tasks=8)


async def test_success_is_that_of_held_out_tasks_and_of_each_version(
    swarm: ScriptedSwarm, observer: SwarmClient
) -> None:
    found = await learned(swarm, observer, ("heads", "edge"), steps=2)
    assert (found.before, found.after, found.curve) == (1.0, 1.0, (1.0, 1.0))
    assert observer.status().step == 2
    kinds = [episode.kind for episode in swarm.episodes()]
    assert (kinds.count("eval"), kinds.count("train")) == (16, 8)


async def test_what_the_model_cannot_do_is_no_success(
    swarm: ScriptedSwarm, observer: SwarmClient
) -> None:
    found = await learned(swarm, observer, ("tails",), steps=1)
    assert (found.before, found.after, found.curve) == (0.0, 0.0, (0.0,))


async def test_a_paused_run_ends_it_with_the_reason(
    swarm: ScriptedSwarm, observer: SwarmClient
) -> None:
    observer.pause_engine("out of patience")
    with pytest.raises(AjetError, match="the run paused: out of patience"):
        await learned(swarm, observer, ("heads",), steps=1)
