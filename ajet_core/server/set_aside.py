"""Tasks that fail again and again, whoever tries them: pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import SetAside

# Giving an episode up on purpose says nothing about its task.
_NO_FAILURES = frozenset({"cancelled", "run_stopped"})


def counts_as_failure(record: EpisodeRecord) -> bool:
    """Whether an aborted episode speaks against its task; a client that died with it does."""
    return record.cause not in _NO_FAILURES


@dataclass(slots=True)
class TaskFailures:
    """Counts the failures of each task since its last success, over all batches and clients.

    :param limit: a task with more of them is set aside.
    """

    limit: int
    _counts: dict[str, int] = field(default_factory=dict)
    _aside: dict[str, SetAside] = field(default_factory=dict)

    def __iter__(self) -> Iterator[SetAside]:
        return iter(list(self._aside.values()))

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._aside

    def succeeded(self, record: EpisodeRecord) -> None:
        """An episode ended with a reward."""
        self._counts.pop(record.task_id, None)
        self._aside.pop(record.task_id, None)

    def failed(self, record: EpisodeRecord) -> SetAside | None:
        """An episode was aborted; the note if its task is set aside because of it."""
        if not counts_as_failure(record):
            return None
        count = self._counts.get(record.task_id, 0) + 1
        self._counts[record.task_id] = count
        if count <= self.limit:
            return None
        newly = record.task_id not in self._aside
        aside = SetAside(
            task_id=record.task_id, group=record.group, aborts=count, reason=record.reason
        )
        self._aside[record.task_id] = aside
        return aside if newly else None

    def forget(self) -> None:
        """Give every task another chance."""
        self._counts.clear()
        self._aside.clear()

    def refusal(self, task_id: str) -> str | None:
        """Why a task is not tried, if it is set aside."""
        aside = self._aside.get(task_id)
        if aside is None:
            return None
        return (
            f"task {task_id!r} is set aside: its last {aside.aborts} episodes failed and none ended, the last one "
            f"because: {aside.reason} (setting batch.max_aborts_per_task; resuming the run gives it another chance)"
        )
