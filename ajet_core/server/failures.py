"""How many of the latest episodes failed, and why: pure bookkeeping."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import FailureConfig

# What an agent or its tools are to blame for; a client that was stopped or lost is no failure of the task.
FAILURE_CAUSES = frozenset({"error", "timeout", "rate_limit"})

_SHOWN_REASONS = 3
_REASON_CHARACTERS = 160
_SHOWN_TASKS = 4


def is_failure(record: EpisodeRecord) -> bool:
    """Whether an episode's agent failed."""
    return record.state == "aborted" and record.cause in FAILURE_CAUSES


@dataclass(frozen=True, slots=True)
class _Outcome:
    """`reason`: "" if the episode ended with a reward."""

    task_id: str
    cause: str = ""
    reason: str = ""


class FailureMeter:
    """Looks at the latest train episodes and says when too many of them failed."""

    def __init__(self, config: FailureConfig) -> None:
        self._config = config
        self._latest: deque[_Outcome] = deque()
        self._failed = 0

    @property
    def too_many(self) -> bool:
        """Whether more failed than may."""
        window = self._config.window
        return len(self._latest) == window and self._failed > self._config.max_rate * window

    def note(self, record: EpisodeRecord) -> None:
        """Take an episode that is over into account."""
        if record.kind != "train":
            return
        if record.state == "ended":
            outcome = _Outcome(record.task_id)
        elif is_failure(record):
            # What follows the first line would make each error its own kind.
            reason = record.reason.partition("\n")[0][:_REASON_CHARACTERS]
            outcome = _Outcome(record.task_id, record.cause, reason)
        else:
            return
        self._latest.append(outcome)
        self._failed += bool(outcome.cause)
        if len(self._latest) > self._config.window:
            self._failed -= bool(self._latest.popleft().cause)

    def forget(self) -> None:
        """Begin anew: somebody has looked after it."""
        self._latest.clear()
        self._failed = 0

    def diagnosis(self) -> str:
        """How many failed and why, in words."""
        failed = [outcome for outcome in self._latest if outcome.cause]
        causes = Counter(outcome.cause for outcome in failed)
        told = ", ".join(
            f"{count} by {cause.replace('_', ' ')}" for cause, count in causes.most_common()
        )
        reasons = Counter(outcome.reason for outcome in failed).most_common(_SHOWN_REASONS)
        quoted = "; ".join(f"{count} times {reason!r}" for reason, count in reasons)
        tasks = list(dict.fromkeys(outcome.task_id for outcome in failed))
        more = f" and {len(tasks) - _SHOWN_TASKS} more" if len(tasks) > _SHOWN_TASKS else ""
        return (
            f"{len(failed)} of the last {len(self._latest)} episodes failed ({told}): {quoted}; "
            f"tasks {', '.join(tasks[:_SHOWN_TASKS])}{more}. Mend the agent or what it uses, then resume the "
            "run; failures.max_rate says how many may fail"
        )
