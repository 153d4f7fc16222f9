"""Episodes of a task that are rolled out together, for rewards that compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentjet.client._async import AsyncSwarmClient
from agentjet.client._episode import (
    NO_RULES,
    ClaimTerms,
    Episode,
    EpisodeFailure,
    EpisodeResult,
    Kind,
    RunnerReport,
)
from agentjet.client._groups import GroupReward
from agentjet.client._runner import (
    RUNNER_LEASE_SECONDS,
    Concurrency,
    Job,
    as_tasks,
    check_concurrency,
    check_episodes_per_task,
)
from agentjet.client._runner_async import run_episodes
from ajet_core.errors import AjetError, RequestError
from ajet_core.interfaces import EpisodeOutcome, Task
from ajet_core.protocol import AgentCause, CallRules, Pace

GroupAgent = Callable[[Task, Sequence[Episode]], Awaitable[Sequence[EpisodeOutcome]]]


@dataclass(frozen=True)
class _Siblings:
    """The open episodes of a task, as one rollout of a runner."""

    episodes: tuple[Episode, ...]

    @property
    def episode_id(self) -> str:
        return self.episodes[0].episode_id

    def redact(self, text: str) -> str:
        for episode in self.episodes:
            text = episode.redact(text)
        return text


@dataclass(frozen=True)
class _SiblingOutcomes:
    outcomes: tuple[EpisodeOutcome, ...]

    @property
    def reward(self) -> float:
        return sum(one.reward for one in self.outcomes) / len(self.outcomes)


class AsyncGroupClient(AsyncSwarmClient):
    """A client whose runner gives an agent all episodes of a task at once.

    The agent gets the task and its episodes and returns an outcome for each, in order. If it fails,
    all of them are aborted, and the task is retried with new ones.
    """

    async def run_episodes_until_all_complete(  # type: ignore[override]
        self,
        tasks: Sequence[str | Task],
        agent: GroupAgent,
        *,
        episodes_per_task: int = 1,
        concurrency: Concurrency = "auto",
        kind: Kind = "train",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        rules: CallRules = NO_RULES,
        resume: bool = False,
        group_reward: GroupReward | None = None,
        on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
    ) -> RunnerReport:
        """Roll out many groups as `AsyncSwarmClient.run_episodes_until_all_complete` does.

        With `resume` a group has the episodes that its task still lacks.

        :param concurrency: how many episodes run at once, but at least one group.
        :raises RequestError: `group_reward` is given, though the agent returns all outcomes.
        """
        if group_reward is not None:
            raise RequestError(
                "the agent has all episodes of a task and returns their outcomes: leave out "
                "group_reward",
                param="group_reward",
            )
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        lacking = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            left = await self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            lacking = list(left.remaining)
        jobs = [Job(task, turn, first=True) for turn, (task, _) in enumerate(lacking)]
        sizes = {(task.id, task.group): size for task, size in lacking}
        outcomes: list[EpisodeResult] = []

        async def claim(task: Task, terms: ClaimTerms) -> _Siblings:
            size = sizes[task.id, task.group]
            claims = [asyncio.create_task(self._claim(task, terms)) for _ in range(size)]
            try:
                return _Siblings(tuple(await asyncio.gather(*claims)))
            except BaseException as error:
                for one in claims:
                    one.cancel()
                done = await asyncio.gather(*claims, return_exceptions=True)
                claimed = [one for one in done if isinstance(one, Episode)]
                await _ServerOfGroups(self).abort_episode(
                    _Siblings(tuple(claimed)),
                    f"another episode of its group could not be claimed: {error}",
                    cause="cancelled",
                    final=False,
                    retries=0,
                )
                raise

        async def end(group: _Siblings, its: _SiblingOutcomes) -> None:
            pairs = zip(group.episodes, its.outcomes, strict=True)
            await asyncio.gather(*(self._end(episode, outcome) for episode, outcome in pairs))

        def note(
            result: EpisodeResult[_Siblings, _SiblingOutcomes] | EpisodeFailure,
        ) -> None:
            if isinstance(result, EpisodeFailure):
                for _ in range(sizes[result.task.id, result.task.group]):
                    failures.append(result)
                    if on_result is not None:
                        on_result(result)
                return
            for episode, outcome in zip(
                result.episode.episodes, result.outcome.outcomes, strict=True
            ):
                one = EpisodeResult(task=result.task, episode=episode, outcome=outcome)
                outcomes.append(one)
                if on_result is not None:
                    on_result(one)

        failures: list[EpisodeFailure] = []
        at_once = concurrency
        if at_once != "auto":
            at_once = max(1, at_once // max(sizes.values(), default=1))
        report = await run_episodes(
            _ServerOfGroups(self),
            jobs,
            lambda task, group: agent(task, group.episodes),
            claim=claim,
            outcome_of=_outcomes,
            end=end,
            terms=ClaimTerms(kind=kind, lease_seconds=lease_seconds, rules=rules),
            group_reward=None,
            concurrency=at_once,
            retries=retries,
            episode_timeout=episode_timeout,
            on_result=note,
            clock=self._connection.clock,
        )
        return RunnerReport(outcomes=outcomes, failures=failures, elapsed=report.elapsed)


class _ServerOfGroups:
    """What a runner needs of the client, for groups."""

    def __init__(self, client: AsyncSwarmClient) -> None:
        self._client = client

    async def abort_episode(
        self,
        episode: _Siblings,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None,
    ) -> None:
        """Give up all episodes of a group.

        :raises AjetError: of the first that could not be aborted.
        """
        done = await asyncio.gather(
            *(
                self._client.abort_episode(one, reason, cause=cause, final=final, retries=retries)
                for one in episode.episodes
            ),
            return_exceptions=True,
        )
        for error in done:
            if isinstance(error, AjetError):
                raise error

    async def heartbeats(self, episodes: Sequence[_Siblings]) -> object:
        """Report that groups are still running."""
        return await self._client.heartbeats([one for group in episodes for one in group.episodes])

    async def pace(self) -> Pace:
        """Return how the server wants episodes to be run."""
        return await self._client.pace()


def _outcomes(value: Any) -> _SiblingOutcomes:
    return _SiblingOutcomes(tuple(map(EpisodeOutcome.of, value)))
