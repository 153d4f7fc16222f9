"""Dataset readers and judges by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agentjet.agents.isolation import IsolatedJudge
from agentjet.agents.tasks import TaskId, task_of
from agentjet.client import Task
from ajet_core.interfaces import DatasetReader, Judge
from ajet_core.plugin import PluginManager
from ajet_core.plugin.targets import plugin_faults


def read_tasks(
    reader: str,
    source: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    *,
    task_id: TaskId | None = None,
    plugins: PluginManager | None = None,
) -> list[Task]:
    """Read the tasks of a dataset with the reader registered as `reader`.

    ```python
    train(solve, read_tasks("jsonl", "train.jsonl"))
    ```

    :param source: the path of the dataset, or what else the reader takes.
    :param settings: override those of ``[readers.NAME]`` in ``ajet.toml``.
    :param task_id: returns the id of an item; see `task_of`.
    :param plugins: the plugin manager to use; None uses that of this process.
    :return: tasks with the items as payloads, in the order of the dataset.
    :raises UnknownComponentError: no installed plugin has it; the message lists the existing ones.
    :raises PluginError: its plugin cannot be used or raised, or several plugins register the name.
    :raises ConfigError: its settings are invalid.
    :raises UnreadableFileError: the dataset cannot be read.
    """
    dataset_reader, owner = load_reader(reader, settings, plugins)
    with plugin_faults(owner, "failed in read"):
        items = list(dataset_reader.read(os.fspath(source)))
    return [task_of(item, task_id) for item in items]


def load_reader(
    name: str, settings: Mapping[str, Any] | None = None, plugins: PluginManager | None = None
) -> tuple[DatasetReader[Any], str]:
    """Create the dataset reader registered as `name`.

    :return: the reader, and its name in messages.
    :raises AjetError: as for `read_tasks`.
    """
    # Imported here because programs without named components do not need settings.
    from ajet_installation.component_settings import component_settings
    from ajet_installation.interpreters import local_manager

    manager = plugins or local_manager()
    spec = manager.reader(name)
    reader = manager.create(spec, component_settings(manager, spec, settings))
    return reader, manager.describe(spec)


def load_judge(
    name: str, settings: Mapping[str, Any] | None = None, plugins: PluginManager | None = None
) -> Judge:
    """Load the judge registered as `name`; ``trainable(reward=NAME)`` does it as well.

    What the judge raises names its plugin.

    ```python
    @trainable(reward=load_judge("exact", {"answer": "solution"}))
    async def solve(task): ...
    ```

    :param settings: override those of ``[judges.NAME]`` in ``ajet.toml``.
    :param plugins: the plugin manager to use; None uses that of this process.
    :raises UnknownComponentError: no installed plugin has it; the message lists the existing ones.
    :raises PluginError: its plugin cannot be used, or several plugins register the name.
    :raises ConfigError: its settings are invalid.
    """
    from ajet_installation.component_settings import component_settings
    from ajet_installation.interpreters import local_manager

    manager = plugins or local_manager()
    spec = manager.judge(name)
    judge = manager.create(spec, component_settings(manager, spec, settings))
    return IsolatedJudge.of(judge, manager.describe(spec))
