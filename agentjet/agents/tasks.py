"""Conversion of dataset items to tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentjet.client import Task

TaskId = Callable[[Any], str]

_ID_KEYS = ("id", "task_id")
_LONGEST = 200


def task_of(item: object, task_id: TaskId | None = None) -> Task:
    """Convert a dataset item to a task with the item as its payload; a `Task` is returned as is.

    The id is the result of `task_id`, or the item's ``id`` or ``task_id`` (key or attribute), or
    the item itself if it is a string; otherwise it is a digest of its JSON, which is the same in
    every process.

    :raises TypeError: no id can be derived from the item.
    """
    if isinstance(item, Task):
        return item
    name = task_id(item) if task_id is not None else _own_id(item)
    if not isinstance(name, str):
        raise TypeError(f"task_id returned {type(name).__name__}; it must return a string")
    return Task(name, payload=item)


def item_of(task: Task) -> Any:
    """Return what the program receives for a task: its payload, or its id if it has none."""
    return task.id if task.payload is None else task.payload


def text_of_task(task: object) -> str:
    """Return a task as a text for an agent.

    :raises TypeError: the task is not a string: its other form may contain what only the reward may
        use.
    """
    if isinstance(task, str):
        return task
    raise TypeError(
        f"a task of type {type(task).__name__} cannot be passed to an agent as text: "
        "decorate a function that runs the agent with the text of the task"
    )


def _own_id(item: object) -> str:
    if isinstance(item, str):
        return item if len(item) <= _LONGEST else _digest(item)
    for key in _ID_KEYS:
        value = item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)
        if isinstance(value, str | int) and str(value):
            return str(value)
    try:
        return _digest(json.dumps(item, sort_keys=True))
    except TypeError as error:
        raise TypeError(
            f"a task of type {type(item).__name__} has no id ({error}): define one with "
            "task_id=lambda task: ..."
        ) from error


def _digest(text: str) -> str:
    return f"task-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
