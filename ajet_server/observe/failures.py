"""Count how many of the latest episodes failed, and why."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import AbortCause, FailureConfig

# The causes for which an agent or its tools are responsible: too many of these pause a run.
_AGENT_FAILURES: frozenset[AbortCause] = frozenset({"error", "timeout", "rate_limit", "no_calls"})
# These count against a task too: a task can kill the program that works on it.
_TASK_FAILURES = _AGENT_FAILURES | {"lease_expired"}

_SHOWN_REASONS = 3
_REASON_CHARACTERS = 160
_SHOWN_TASKS = 4


def is_failure(record: EpisodeRecord) -> bool:
    """Whether an episode's agent failed."""
    return record.state == "aborted" and record.cause in _AGENT_FAILURES


def counts_against_task(record: EpisodeRecord) -> bool:
    """Whether an aborted episode counts against its task."""
    return record.cause in _TASK_FAILURES


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of an episode.

    :param cause: "" if the episode ended with a reward.
    :param reason: first line of the reason, "" if the episode ended with a reward.
    """

    client_id: str
    task_id: str
    cause: str = ""
    reason: str = ""


class _Window:
    """The latest outcomes, and the number of failures among them."""

    def __init__(self, size: int) -> None:
        self.latest: deque[_Outcome] = deque()
        self.failed = 0
        self._size = size

    def add(self, outcome: _Outcome) -> None:
        self.latest.append(outcome)
        self.failed += bool(outcome.cause)
        if len(self.latest) > self._size:
            self.failed -= bool(self.latest.popleft().cause)


class FailureMeter:
    """Watches the latest train episodes and detects when too many of them failed.

    If several clients share a run, too many episodes must also have failed without the client that
    has the most failures: one client's agents must not stop the other clients.

    :param others: returns whether clients other than the given ones take part in the run.
    """

    def __init__(
        self, config: FailureConfig, others: Callable[[Set[str]], bool] = lambda _: False
    ) -> None:
        self._config = config
        self._others = others
        self.forget()

    @property
    def too_many(self) -> bool:
        """Whether more episodes failed than `failures.max_rate` allows."""
        if not self._exceeds([self._all]):
            return False
        worst = max(self._of_client, key=lambda client: self._of_client[client].failed)
        return not self._others({worst}) or self._exceeds(
            [window for client, window in self._of_client.items() if client != worst]
        )

    def note(self, record: EpisodeRecord) -> None:
        """Count an episode that has ended or was aborted."""
        if record.kind != "train":
            return
        if record.state == "ended":
            outcome = _Outcome(record.client_id, record.task_id)
        elif is_failure(record):
            # Only the first line: further lines would make every reason unique.
            reason = record.reason.partition("\n")[0][:_REASON_CHARACTERS]
            outcome = _Outcome(record.client_id, record.task_id, record.cause, reason)
        else:
            return
        size = self._config.window
        self._all.add(outcome)
        self._of_client.setdefault(record.client_id, _Window(size)).add(outcome)

    def forget(self) -> None:
        """Reset the counts, after somebody has dealt with the failures."""
        self._all = _Window(self._config.window)
        self._of_client: dict[str, _Window] = {}

    def diagnosis(self) -> str:
        """Describe how many episodes failed and why."""
        failed = [outcome for outcome in self._all.latest if outcome.cause]
        causes = Counter(outcome.cause for outcome in failed)
        counts = ", ".join(
            f"{count} by {cause.replace('_', ' ')}" for cause, count in causes.most_common()
        )
        reasons = Counter(outcome.reason for outcome in failed).most_common(_SHOWN_REASONS)
        quoted = "; ".join(f"{count} times {reason!r}" for reason, count in reasons)
        tasks = list(dict.fromkeys(outcome.task_id for outcome in failed))
        more = f" and {len(tasks) - _SHOWN_TASKS} more" if len(tasks) > _SHOWN_TASKS else ""
        return (
            f"{len(failed)} of the last {len(self._all.latest)} episodes failed ({counts}): "
            f"{quoted}; tasks {', '.join(tasks[:_SHOWN_TASKS])}{more}. Fix the agent or the "
            "services that it uses, then resume the run; failures.max_rate sets how many "
            "may fail"
        )

    def _exceeds(self, windows: Sequence[_Window]) -> bool:
        """Whether `windows` hold a full window of outcomes, and too many failures among them."""
        known = sum(len(window.latest) for window in windows)
        failed = sum(window.failed for window in windows)
        return known >= self._config.window and failed > self._config.max_rate * known
