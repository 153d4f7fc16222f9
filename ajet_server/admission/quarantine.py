"""Tasks that fail repeatedly: bookkeeping only."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import Quarantine
from ajet_server.observe.failures import counts_against_task
from ajet_server.security.tenants import shown_group

# Equal task ids of two clients are separate tasks.
_Key = tuple[str, str]

_MOST_TASKS = 10_000
_REASON_CHARACTERS = 500


def _key(record: EpisodeRecord) -> _Key:
    return record.client_id, record.task_id


@dataclass(slots=True)
class TaskFailures:
    """Counts each task's failures since its last success.

    The counts cover all batches and all programs of a client. Clients whose episodes cannot be
    trained are quarantined as a whole.

    :param limit: a task with more failures is quarantined.
    """

    limit: int
    _counts: dict[_Key, int] = field(default_factory=dict)
    _tasks: dict[_Key, Quarantine] = field(default_factory=dict)

    _clients: dict[str, Quarantine] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Quarantine]:
        return iter([*self._clients.values(), *self._tasks.values()])

    def __len__(self) -> int:
        return len(self._tasks)

    def succeeded(self, record: EpisodeRecord) -> None:
        """Record an episode that ended with a reward."""
        key = _key(record)
        self._counts.pop(key, None)
        self._tasks.pop(key, None)

    def failed(self, record: EpisodeRecord) -> Quarantine | None:
        """Record an aborted episode; return an entry if this quarantines its task."""
        if not counts_against_task(record):
            return None
        key = _key(record)
        # Keep the latest failures at the end: clients can name any number of tasks.
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        for table in (self._counts, self._tasks):
            if len(table) > _MOST_TASKS:
                del table[next(iter(table))]
        if count <= self.limit:
            return None
        newly = key not in self._tasks
        entry = Quarantine(
            client_id=record.client_id,
            task_id=record.task_id,
            group=shown_group(record.group),
            aborts=count,
            reason=record.reason[:_REASON_CHARACTERS],
        )
        self._tasks[key] = entry
        return entry if newly else None

    @property
    def clients(self) -> Set[str]:
        """Ids of clients that are quarantined with all their tasks."""
        return self._clients.keys()

    def quarantine_client(self, client_id: str, reason: str) -> Quarantine:
        """Quarantine a client with all its tasks."""
        entry = Quarantine(
            client_id=client_id, task_id="", group="", aborts=0, reason=reason[:_REASON_CHARACTERS]
        )
        self._clients[client_id] = entry
        return entry

    def forget(self) -> None:
        """Allow every task and every client to be tried again."""
        self._counts.clear()
        self._tasks.clear()
        self._clients.clear()

    def refusal(self, client_id: str, task_id: str) -> str | None:
        """Return why a client's task is not tried, None unless it is quarantined."""
        if (client := self._clients.get(client_id)) is not None:
            return (
                "this client's training episodes are quarantined because several batches in a "
                f"row could not be trained with them. Last reason: {client.reason} (setting "
                "failures.max_refused; when the operator resumes the run, the client may "
                "continue)"
            )
        entry = self._tasks.get((client_id, task_id))
        if entry is None:
            return None
        return (
            f"task {task_id!r} is quarantined: its last {entry.aborts} episodes failed and "
            f"none ended. Last reason: {entry.reason} (setting batch.max_aborts_per_task; "
            "when the run is resumed, the task is tried again)"
        )
