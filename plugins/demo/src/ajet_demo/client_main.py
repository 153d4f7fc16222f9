"""The demo's swarm client, a separate process: ``python -m ajet_demo.client_main``.

It imports its packages while the server boots, and begins when its standard input has a line with
the server's URL. It asks the server for the step to continue with, so it may be killed and
restarted at any time. Its standard output has only the lines of `ajet_demo.lines`.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Literal

import click

from agentjet.client import (
    AsyncSwarmClient,
    Episode,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    RunnerReport,
    Task,
)
from agentjet.local.processes import end_with_parent
from ajet_core.errors import AjetError
from ajet_demo.agent import GridWalkAgent
from ajet_demo.lines import DoneLine, EvalLine, Line, TrainLine
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    eval_task_ids,
    train_task_ids,
)
from ajet_installation.event_loop import loop_factory

_Agent = Callable[[Task, Episode], Awaitable[EpisodeOutcome]]

ROUNDS = 4
# After a crash, the episodes of this client keep their slots in the batch until their leases
# expire, which delays continuing by this time. Heartbeats renew them while the client is alive.
LEASE_SECONDS = 20.0
# An evaluation costs as much as the rollouts of a step, so evaluate only when the success of
# training episodes is close to the target.
EVAL_MARGIN = 0.03
INTERRUPTED = 130
FAILED = 2


class StaleStepError(RuntimeError):
    """The batch of an episode had already been trained when it was claimed.

    This happens after a restart in the middle of a batch: the server kept the episodes that had
    ended, and needed fewer than a whole batch.
    """


class DemoClient:
    """Evaluates, and rolls out training batches until the target is reached.

    :param emit: called with lines for the parent.
    :param clock: returns monotonic seconds.
    """

    def __init__(
        self,
        client: AsyncSwarmClient,
        agent: GridWalkAgent,
        *,
        seed: int,
        emit: Callable[[Line], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._agent = agent
        self._seed = seed
        self._emit = emit
        self._clock = clock

    async def run(self, *, target: float, steps: int) -> DoneLine:
        """Train up to `steps` steps in total, including those of earlier runs."""
        step = (await self._client.status()).step
        success = await self.evaluate(step)
        recent: list[float] = []
        while step < steps and not (success >= target and step > 0):
            recent = [*recent[-1:], await self.train(step + 1)]
            step += 1
            near = sum(recent) / len(recent) >= target - EVAL_MARGIN
            if near or step == steps:
                success = await self.evaluate(step)
        done = DoneLine(step=step, success=success, reached=success >= target)
        self._emit(done)
        return done

    async def evaluate(self, step: int) -> float:
        """Return the success on held-out tasks."""
        began = self._clock()
        report = await self._roll_out(eval_task_ids(self._seed), 1, self._agent, kind="eval")
        line = EvalLine(
            step=step,
            success=_mean(report, "success"),
            reward=report.reward_mean or 0.0,
            episodes=len(report.outcomes),
            seconds=self._clock() - began,
        )
        self._emit(line)
        return line.success

    async def train(self, step: int) -> float:
        """Roll out the batch of `step`, and return its success."""

        async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
            if episode.policy_version >= step:
                raise StaleStepError(f"step {step} is already trained")
            return await self._agent(task, episode)

        began = self._clock()
        report = await self._roll_out(
            train_task_ids(self._seed, step), ROLLOUTS_PER_TASK, agent, kind="train"
        )
        line = TrainLine(
            step=step,
            success=_mean(report, "success"),
            reward=report.reward_mean or 0.0,
            invalid=_mean(report, "invalid"),
            moves=_mean(report, "moves"),
            episodes=len(report.outcomes),
            seconds=self._clock() - began,
        )
        self._emit(line)
        return line.success

    async def _roll_out(
        self,
        task_ids: Sequence[str],
        episodes_per_task: int,
        agent: _Agent,
        *,
        kind: Literal["train", "eval"],
    ) -> RunnerReport:
        """Roll out all episodes; if any were missing, the batch would never be full."""
        began = self._clock()
        outcomes: list[EpisodeResult] = []
        missing = [task_id for task_id in task_ids for _ in range(episodes_per_task)]
        for _ in range(ROUNDS):
            report = await self._client.run_episodes_until_all_complete(
                missing,
                agent,
                concurrency=EPISODES_PER_STEP,
                kind=kind,
                retries=0,
                lease_seconds=LEASE_SECONDS,
            )
            outcomes += report.outcomes
            failures = [f for f in report.failures if not isinstance(f.error, StaleStepError)]
            if not failures:
                return RunnerReport(outcomes=outcomes, failures=[], elapsed=self._clock() - began)
            missing = [failure.task.id for failure in failures]
        raise _gave_up(failures)


def _gave_up(failures: Sequence[EpisodeFailure]) -> AjetError:
    first = failures[0]
    return AjetError(
        f"{len(failures)} episodes failed {ROUNDS} times in a row. First failure, of task "
        f"{first.task.id}:\n"
        f"{first.traceback}"
    )


def _mean(report: RunnerReport, component: str) -> float:
    values = [result.outcome.components[component] for result in report.outcomes]
    return sum(values) / len(values) if values else 0.0


async def run(url: Future[str], *, seed: int, target: float, steps: int) -> int:
    """Run until the end or a signal, and return the exit status."""
    agent = GridWalkAgent(TEMPERATURE)
    # Imports create many permanent objects, in which no collection shall look for garbage.
    gc.freeze()
    address: str = await asyncio.wrap_future(url)
    async with AsyncSwarmClient(address) as client:
        demo = DemoClient(client, agent, seed=seed, emit=_print_line)
        work = asyncio.create_task(demo.run(target=target, steps=steps))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # On cancellation the runner aborts the open episodes.
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            return INTERRUPTED
        except AjetError as error:
            click.echo(f"demo client: {error.message}", err=True)
            return FAILED
        finally:
            await agent.close()
    return 0


def _print_line(line: Line) -> None:
    sys.stdout.write(line.model_dump_json() + "\n")
    sys.stdout.flush()


@click.command()
@click.option("--seed", type=int, default=0, help="Seed of the tasks.")
@click.option("--target", type=float, default=0.9, help="Success rate at which to stop.")
@click.option("--steps", type=int, default=60, help="Maximum number of steps to train.")
def main(seed: int, target: float, steps: int) -> None:
    """Train the demo's model on a running swarm server. The token comes from AJET_TOKEN."""
    url = end_with_parent()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        sys.exit(runner.run(run(url, seed=seed, target=target, steps=steps)))


if __name__ == "__main__":
    main()
