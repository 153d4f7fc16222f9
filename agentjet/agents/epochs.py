"""Passes over a dataset: each epoch uses groups that no other epoch has used."""

from __future__ import annotations

import logging
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentjet.agents.curriculum import Curriculum, Measured
from agentjet.agents.running.programs import Trainable
from agentjet.client import Resumption, Task
from ajet_core.errors import RequestError
from ajet_core.protocol import RunStatus

Asking = Generator[list[Task], Resumption, "EpochPlan"]
"""Yields tasks, receives which of them have ended episodes, and returns a plan."""

_ASKED_AT_ONCE = 1024
_log = logging.getLogger("ajet.agents")


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The episodes to roll out.

    :param tasks: tasks of all epochs, in order.
    :param size: episodes of each task.
    :param last: number of the last epoch.
    """

    tasks: list[Task]
    size: int
    last: int


def plan(
    program: Trainable[Any],
    items: Sequence[Any],
    status: RunStatus,
    *,
    epochs: int,
    first: int | None,
    resume: bool,
    size: int | None,
    shuffle: int | None,
    curriculum: Curriculum | None = None,
    measured: Measured | None = None,
) -> Asking:
    """Number the epochs, starting with `first`, and plan their episodes.

    If `first` is None, start with epoch 1 when `resume` is set, else with the first epoch after
    those in which episodes have ended.

    If a group is complete in the open batch, further episodes of it wait until that batch is
    trained, and the batch may lack just those episodes.

    :param curriculum: chooses the tasks of the only epoch.
    :param measured: the epochs before; those that it lacks are added.
    :raises RequestError: two tasks have the same id, or an argument is out of range.
    """
    for name, value in (("epochs", epochs), ("first_epoch", 1 if first is None else first)):
        if value < 1:
            raise RequestError(f"{name} is {value}; it must be at least 1", param=name)
    tasks = _tasks(program, items)
    its_size = _size(status, size)
    if program.options.group_reward is not None and status.config.batch.full_by == "episodes":
        raise RequestError(
            "a group reward needs all episodes of a task in one batch: set batch.full_by to "
            '"tasks" or "differing_tasks"',
            param="batch.full_by",
        )
    if first is None and resume:
        first = 1
    elif first is None:
        first = yield from _unused(tasks, epochs)
    if curriculum is not None and measured is not None:
        yield from _add_epochs(measured, tasks, first, curriculum.kept())
        chosen = curriculum.choose(tasks, first, measured)
        return EpochPlan(
            tasks=[_in_epoch(task, first) for task in chosen], size=its_size, last=first
        )
    wanted: list[Task] = []
    for epoch in range(first, first + epochs):
        order = list(tasks)
        if shuffle is not None:
            random.Random(f"{shuffle} {epoch}").shuffle(order)  # noqa: S311
        wanted += [_in_epoch(task, epoch) for task in order]
    return EpochPlan(tasks=wanted, size=its_size, last=first + epochs - 1)


def _in_epoch(task: Task, epoch: int) -> Task:
    return replace(task, group=f"{task.group or task.id}@{epoch}")


def _add_epochs(
    measured: Measured, tasks: Sequence[Task], until: int, kept: float
) -> Generator[list[Task], Resumption, None]:
    """Add the epochs before `until`."""
    while measured.epochs + 1 < until:
        epoch = measured.epochs + 1
        groups = {task.id: str(_in_epoch(task, epoch).group) for task in tasks}
        counts = (yield [Task(group, group=group) for group in groups.values()]).counts
        measured.add({name: counts[group] for name, group in groups.items()}, kept)


def _unused(tasks: Sequence[Task], epochs: int) -> Generator[list[Task], Resumption, int]:
    """Return the first of `epochs` consecutive epochs in which no task has an ended episode."""
    step = max(epochs, _ASKED_AT_ONCE // max(1, len(tasks)))
    first, asked = 1, 1
    while asked - first < epochs:
        these = {
            epoch_task.group: epoch
            for epoch in range(asked, asked + step)
            for epoch_task in (_in_epoch(task, epoch) for task in tasks)
        }
        ended = (yield [Task(str(group), group=group) for group in these]).finished
        first = max([first, *(these[task.group] + 1 for task in ended)])
        asked += step
    return first


def _tasks(program: Trainable[Any], items: Sequence[Any]) -> list[Task]:
    tasks = [program.options.task(item) for item in items]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise RequestError(
                f"two tasks have the id {task.id!r}, so their episodes would be compared "
                "with each other: give each task its own id (task_id=)",
                param="tasks",
            )
        seen.add(task.id)
    return tasks


def _size(status: RunStatus, size: int | None) -> int:
    """Return the number of episodes of a task in an epoch."""
    batch = status.config.batch
    size = batch.episodes_per_task if size is None else size
    if size < 1:
        raise RequestError(
            f"episodes_per_task is {size}; it must be at least 1", param="episodes_per_task"
        )
    if size > batch.episodes_per_task and batch.full_by != "episodes":
        raise RequestError(
            f"episodes_per_task is {size}, but a batch takes only {batch.episodes_per_task} "
            "episodes per task; the rest would never be trained. Use at most "
            f"{batch.episodes_per_task}",
            param="episodes_per_task",
        )
    if size < batch.episodes_per_task and batch.full_by != "episodes":
        _log.warning(
            "episodes_per_task is %d, but the run's batches take %d episodes of a task: episodes "
            "that do not fill a batch are not trained",
            size,
            batch.episodes_per_task,
        )
    return size
