"""Make runs with planted trouble, for readers who diagnose them from the live page alone.

Each of `TROUBLES` is a short real run: a server of its own with its default limits, the tiny model,
agents over HTTP. Directories have letters as names, in random order, so that a reader opens a page
without knowing which trouble it has; `key.json` in the directory has the answers. A trouble shows
if one of its findings is in the server's status, and the sentence of the page does not hide it.

The address of each page is printed when its run is ready, and the servers stay until you press
Ctrl-C; `--check` ends them at once. The JSON line comes last, unless it is interrupted: `planted`
and `shown` count troubles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import string
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import at_least
from reporting import report

from agentjet.client import AsyncSwarmClient, Episode, EpisodeOutcome, Task, TokenClient
from agentjet.local import LocalServer
from ajet_core.interfaces import WorldAnswer, WorldCall, WorldPrompt
from ajet_core.protocol import BatchConfig, RunConfig, ServerStatus
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent, episode_outcome
from ajet_worlds.grid import grid_outcome, walk_with
from ajet_worlds.gridwalk import MAX_MOVES, GridWalk
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

WORLD = load_world("grid")
POLL_SECONDS = 0.5
# A server explains why nothing happens after ten quiet seconds.
SHOWN_WITHIN = 120.0
HEALTHY_STEPS = 3
# Half of the recipe's, so that a run is short.
BATCH = BatchConfig(tasks=4, episodes_per_task=8)


class HealthyAgent(WorldAgent):
    """The agent of the grid's recipe."""

    def __init__(self) -> None:
        super().__init__(WORLD)

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        walk = GridWalk(task.id)

        async def move(call: WorldCall, _: WorldAnswer) -> str:
            return self.move(walk, call)

        await walk_with(walk, self.chat(episode), move)
        outcome = episode_outcome(grid_outcome(walk))
        return EpisodeOutcome(reward=self.reward(outcome), components=outcome.components)

    def move(self, walk: GridWalk, call: WorldCall) -> str:
        """Use the tool, and return its reply."""
        return walk.call(call.name, call.arguments)

    def reward(self, outcome: EpisodeOutcome) -> float:
        """Return the reward of an episode."""
        return float(outcome.reward or 0.0)


class EqualRewards(HealthyAgent):
    """Reports the same reward whatever happens."""

    def reward(self, outcome: EpisodeOutcome) -> float:  # noqa: ARG002 - as of the class above
        return 0.5


class BrokenTool(HealthyAgent):
    """Its tool cannot reach the service behind it."""

    def move(self, walk: GridWalk, call: WorldCall) -> str:  # noqa: ARG002 - the tool ignores it
        walk.moves += 1
        walk.done = walk.moves >= MAX_MOVES
        return "Error: connection to maze.internal:8080 refused"


class LyingReward(HealthyAgent):
    """Pays for long walks instead of for the goal."""

    def reward(self, outcome: EpisodeOutcome) -> float:
        return outcome.components["moves"] / 10


class StalledClient(HealthyAgent):
    """Asks the model once, and then waits for ever. Its process still sends heartbeats."""

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        walk = GridWalk(task.id)
        await self.chat(episode).ask(WorldPrompt(walk.messages(), ()))
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


@dataclass(frozen=True)
class Trouble:
    """A trouble of a run.

    :param findings: codes of findings, each of which names it.
    :param agent: plays the episodes, from the first one on; for `stalls` those of one task.
    :param algorithm: changes of the settings of the algorithm.
    :param stalls: some healthy steps come first, and then a batch that is never complete.
    """

    name: str
    findings: tuple[str, ...]
    agent: type[HealthyAgent] = HealthyAgent
    algorithm: dict[str, Any] = field(default_factory=dict)
    stalls: bool = False

    def config(self, model: Path) -> RunConfig:
        """Return the configuration of its run."""
        config = run_config(WORLD, model)
        algorithm = config.algorithm.model_copy(update=self.algorithm)
        return config.model_copy(update={"algorithm": algorithm, "batch": BATCH})


TROUBLES: Sequence[Trouble] = (
    Trouble("equal rewards", ("zero_signal", "equal_rewards"), EqualRewards),
    Trouble("a broken tool", ("tools_alike",), BrokenTool),
    Trouble("a stalled client", ("waiting_for_episodes",), StalledClient, stalls=True),
    Trouble(
        "a collapsing policy",
        ("entropy", "malformed", "reward_drop"),
        # A trainer without a limit of updates, and a learning rate that is far too high.
        algorithm={"learning_rate": 0.02, "warmup_steps": 0, "max_update_kl": 0.0},
    ),
    Trouble("a lying reward", ("reward_mismatch",), LyingReward),
)


async def roll(client: AsyncSwarmClient, agent: HealthyAgent, first: int, count: int) -> None:
    """Roll out tasks of the training set, each as often as the recipe says."""
    await client.run_episodes_until_all_complete(
        WORLD.task_ids("train", 0, count, start=first),
        agent,
        episodes_per_task=BATCH.episodes_per_task,
        concurrency=BATCH.episodes,
        retries=0,
    )


async def train(client: AsyncSwarmClient, agent: HealthyAgent, steps: int) -> None:
    """Roll out the batches of some steps."""
    for step in range(steps):
        await roll(client, agent, step * BATCH.tasks, BATCH.tasks)
        await client.wait_for_step(step + 1)


async def stall(client: AsyncSwarmClient, url: str, token: str) -> None:
    """Fill a batch but for one task, whose episodes another client holds."""
    async with HealthyAgent() as agent:
        await train(client, agent, HEALTHY_STEPS)
        first = HEALTHY_STEPS * BATCH.tasks
        async with AsyncSwarmClient(url, token) as other, StalledClient() as stalled:
            await asyncio.gather(
                roll(client, agent, first + 1, BATCH.tasks - 1),
                roll(other, stalled, first, 1),
            )


async def until_shown(
    client: AsyncSwarmClient, trouble: Trouble, rolling: asyncio.Task[None]
) -> ServerStatus:
    """Wait until the run is paused, or all its steps are over and a finding names the trouble."""
    while True:
        status = await client.status()
        codes = {finding.code for finding in status.findings}
        if status.paused or (codes & set(trouble.findings) and (rolling.done() or trouble.stalls)):
            return status
        await asyncio.sleep(POLL_SECONDS)


@contextlib.asynccontextmanager
async def planted(
    directory: Path, model: Path, trouble: Trouble, steps: int
) -> AsyncIterator[tuple[str, ServerStatus | None]]:
    """Make a run, and keep its server and what still runs; yields its page and its status.

    The status is None if no finding named the trouble in time.
    """
    with LocalServer(directory, models=model.parent) as server:
        await asyncio.to_thread(server.start_run, trouble.config(model))
        url, token = server.client.url, server.client_token
        with closing(TokenClient(url, server.environment["AJET_TOKEN"], retries=1)) as tokens:
            address = tokens.issue_page().address
        async with AsyncSwarmClient(url, token) as client, trouble.agent() as agent:
            rolling = asyncio.ensure_future(
                stall(client, url, token) if trouble.stalls else train(client, agent, steps)
            )
            try:
                status = await watched(server.async_client(), trouble, rolling)
                yield address, status
            finally:
                rolling.cancel()
                await asyncio.gather(rolling, return_exceptions=True)


async def watched(
    client: AsyncSwarmClient, trouble: Trouble, rolling: asyncio.Task[None]
) -> ServerStatus | None:
    """Watch a run until it shows its trouble, or some time after it has been rolled out."""
    async with client:
        shown = asyncio.ensure_future(until_shown(client, trouble, rolling))
        await asyncio.wait([shown, rolling], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([shown], timeout=SHOWN_WITHIN)
        if rolling.done():
            rolling.result()
        if not shown.done():
            shown.cancel()
            return None
        return shown.result()


async def make(
    directory: Path, model: Path, troubles: Sequence[Trouble], steps: int, *, check: bool
) -> dict[str, Any]:
    """Make all runs, one after the other, and keep them for readers."""
    letters = random.sample(string.ascii_uppercase, len(troubles))
    order = random.sample(list(troubles), len(troubles))
    key = {}
    async with contextlib.AsyncExitStack() as kept:
        for letter, trouble in zip(letters, order, strict=True):
            address, status = await kept.enter_async_context(
                planted(directory / letter, model, trouble, steps)
            )
            codes = [finding.code for finding in status.findings] if status is not None else []
            shown = bool(set(codes) & set(trouble.findings))
            key[letter] = {
                "trouble": trouble.name,
                "shown": shown,
                "findings": codes,
                "step": status.step if status is not None else None,
                "paused": status.paused if status is not None else None,
            }
            (directory / "key.json").write_text(json.dumps(key, indent=2) + "\n", encoding="utf-8")
            print(f"run {letter}: {address}", file=sys.stderr, flush=True)
        if not check:
            print("The servers end when you press Ctrl-C.", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
    shown = sum(entry["shown"] for entry in key.values())
    return {
        "benchmark": "trouble",
        "planted": len(key),
        "shown": shown,
        "steps": steps,
        "runs": list(key.values()),
    }


def main() -> None:
    """Make the runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="for the runs; new")
    parser.add_argument("--model", type=Path, help="a tiny model of earlier runs, not a new one")
    parser.add_argument("--steps", type=at_least(1), default=10, help="of each run, at most")
    parser.add_argument("--only", help="only troubles whose names contain this")
    parser.add_argument("--check", action="store_true", help="keep no servers for readers")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    troubles = [each for each in TROUBLES if options.only is None or options.only in each.name]
    options.directory.mkdir(parents=True)
    model = options.model
    if model is None:
        model = options.directory / "model"
        create_tiny_model(model, worlds=[WORLD], seed=0)
    with contextlib.suppress(KeyboardInterrupt):
        runs = make(options.directory, model, troubles, options.steps, check=options.check)
        result = asyncio.run(runs)
        report(result, options.output)


if __name__ == "__main__":
    main()
