"""Episodes as callers see them, and their outcomes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, Self

from typing_extensions import TypeVar

from ajet_core.protocol import AgentCause, CallRules, EpisodeGrant, GroupCounts
from ajet_core.task import EpisodeOutcome, Task

Kind = Literal["train", "eval"]

MAX_REASON = 4096
NO_RULES = CallRules()
_TOO_MANY_REQUESTS = 429


class Rollout(Protocol):
    """The part of an episode that a runner uses."""

    @property
    def episode_id(self) -> str:
        """The id of the episode in logs."""

    def redact(self, text: str) -> str:
        """Return `text` without the episode's keys."""


class Scored(Protocol):
    """The part of an outcome that a runner uses."""

    @property
    def reward(self) -> float:
        """One number, for the logs."""


@dataclass(kw_only=True)
class Episode:
    """A claimed episode, with the endpoint for its model calls.

    Give `base_url`, `api_key` and `model` to any OpenAI-compatible client.

    :param api_key: valid only for this episode, while it is open.
    :param policy_version: version of the weights at the time of the claim.
    """

    episode_id: str
    task_id: str
    group: str
    kind: Kind
    base_url: str
    api_key: str = field(repr=False)
    model: str
    policy_version: int
    lease_seconds: float

    @classmethod
    def from_grant(cls, grant: EpisodeGrant) -> Self:
        """Create an episode from a grant."""
        return cls(**grant.model_dump())

    def redact(self, text: str) -> str:
        """Return `text` without this episode's key, which clients often quote in their errors."""
        return text.replace(self.api_key, "***") if self.api_key else text


@dataclass(kw_only=True)
class PendingEpisode(Episode):
    """An episode inside a ``with`` block, with the outcome to report when the block ends.

    :ivar reward: set this, or call ``end``; an episode without a reward is aborted.
    :ivar closed: whether the episode was ended or aborted through this object.
    """

    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    call_rewards: dict[str, float] = field(default_factory=dict)
    agent_rewards: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    allow_no_calls: bool = False
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """Options of a claim; see the parameters of `SwarmClient.begin_episode`."""

    kind: Kind
    lease_seconds: float
    heartbeat_seconds: float | None = None
    timeout: float | None = None
    rules: CallRules = NO_RULES


EpisodeT = TypeVar("EpisodeT", bound=Rollout, default=Episode)
EpisodeT_contra = TypeVar("EpisodeT_contra", bound=Rollout, contravariant=True)
OutcomeT = TypeVar("OutcomeT", bound=Scored, default=EpisodeOutcome)


@dataclass(frozen=True, kw_only=True)
class EpisodeResult(Generic[EpisodeT, OutcomeT]):
    """An episode that ended with a reward."""

    task: Task
    episode: EpisodeT
    outcome: OutcomeT


@dataclass(frozen=True, kw_only=True)
class EpisodeFailure:
    """An episode that was given up after all its retries.

    :param attempts: the number of attempts.
    :param error: the last exception.
    :param traceback: its traceback as text, without the episode's key.
    :param reason: the exception in one line, without the episode's key; of an `ExceptionGroup`, the
        exceptions in it.
    """

    task: Task
    attempts: int
    error: BaseException
    traceback: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RunnerReport(Generic[EpisodeT, OutcomeT]):
    """The results of all episodes of a runner.

    :param outcomes: episodes in the order in which they ended.
    :param elapsed: duration in seconds.
    """

    outcomes: Sequence[EpisodeResult[EpisodeT, OutcomeT]]
    failures: Sequence[EpisodeFailure]
    elapsed: float

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of the episodes that ended; None if there is none."""
        if not self.outcomes:
            return None
        return sum(result.outcome.reward for result in self.outcomes) / len(self.outcomes)

    def __str__(self) -> str:
        """Return a summary in one line, without the single episodes."""
        said = f"{len(self.outcomes)} episodes ended in {self.elapsed:.1f} s"
        if self.outcomes:
            said += f", with a mean reward of {self.reward_mean:.4g}"
        if self.failures:
            first = self.failures[0]
            said += (
                f"; {len(self.failures)} failed, the first (task {first.task.id!r}) because of "
                f"{first.reason}"
            )
        return said


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """The remaining part of a dataset, according to the server.

    :param finished: tasks all of whose episodes have ended.
    :param remaining: the other tasks, each with the number of episodes that it still lacks.
    :param counts: the episodes of each of their groups.
    """

    finished: Sequence[Task]
    remaining: Sequence[tuple[Task, int]]
    counts: Mapping[str, GroupCounts] = field(default_factory=dict)


def abort_reason(error: BaseException, episode: Rollout) -> str:
    """Describe an error for the server: ``ValueError: ...`` and where it was raised.

    Of an `ExceptionGroup`, the exceptions in it, and where the first of them was raised.
    """
    leaves = _leaves(error)
    reason = "\n".join(map(_text_of, leaves))
    # The traceback of a cancellation or an interrupt says nothing useful.
    raised = isinstance(leaves[0], Exception)
    frames = traceback.format_tb(leaves[0].__traceback__) if raised else []
    # Keep the innermost frames, which say the most.
    while frames and len(reason) + sum(map(len, frames)) + 1 > MAX_REASON:
        frames.pop(0)
    return episode.redact("\n".join([reason, "".join(frames).rstrip()]).rstrip())[:MAX_REASON]


def failure_reason(error: BaseException, episode: Rollout | None) -> str:
    """Return an error in one line, without the episode's key."""
    lines = (_text_of(leaf).partition("\n")[0] for leaf in _leaves(error))
    text = "; ".join(dict.fromkeys(lines))
    return text if episode is None else episode.redact(text)


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in an `ExceptionGroup`, at any depth; of another error, itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _text_of(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    # An exception's `__str__` may fail; its episode must be aborted all the same.
    except Exception:  # noqa: BLE001
        text = "(its text cannot be shown)"
    return f"{name}: {text}" if text else name


def abort_cause(error: BaseException) -> AgentCause:
    """Classify an exception by its class name and status, whichever library raised it.

    Of an `ExceptionGroup`, the most specific cause of the exceptions in it.
    """
    if isinstance(error, BaseExceptionGroup):
        causes = {abort_cause(leaf) for leaf in _leaves(error)}
        order: tuple[AgentCause, ...] = ("rate_limit", "timeout", "error", "cancelled")
        return next(cause for cause in order if cause in causes)
    if not isinstance(error, Exception) or isinstance(error, RunnerStoppedError):
        return "cancelled"
    names = [cls.__name__ for cls in type(error).__mro__]
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status == _TOO_MANY_REQUESTS or any("RateLimit" in name for name in names):
        return "rate_limit"
    if any("Timeout" in name for name in names):
        return "timeout"
    return "error"


class RunnerStoppedError(RuntimeError):
    """An episode was given up because its runner was stopped."""


def resumption(
    tasks: Sequence[Task], episodes_per_task: int, counts: Mapping[str, GroupCounts]
) -> Resumption:
    """Return the remaining part of `tasks`.

    :param counts: episodes by group.
    """
    finished: list[Task] = []
    remaining: list[tuple[Task, int]] = []
    # Each ended episode counts once, even if a task is listed twice.
    ended = {group: its_counts.ended for group, its_counts in counts.items()}
    for task in tasks:
        group = task.group or task.id
        done = min(episodes_per_task, ended.get(group, 0))
        ended[group] = ended.get(group, 0) - done
        lacking = episodes_per_task - done
        if lacking > 0:
            remaining.append((task, lacking))
        else:
            finished.append(task)
    return Resumption(finished=finished, remaining=remaining, counts=counts)


def traceback_text(error: BaseException, episode: Rollout | None) -> str:
    """Return a traceback as Python prints it, without the episode's key."""
    text = "".join(traceback.format_exception(error))
    return text if episode is None else episode.redact(text)


NO_REWARD = "the client left the episode without reporting a reward"
