"""The source ``harbor``: tasks that are directories, rolled out as trials."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ajet_core.errors import AjetError, ConfigError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskProbe, TaskSource
from ajet_sources_harbor.settings import HarborSettings

_CONFIG, _OLD_CONFIG = "task.toml", "task.yaml"
_PROBES = {"reference": "oracle", "nop": "nop"}


class HarborSource(TaskSource[HarborSettings]):
    """Task directories of Harbor. The argument is one, or a directory of them.

    Directories of a directory are splits if they contain tasks, but are none.
    """

    def __init__(self, settings: HarborSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._splits: dict[str, list[Task]] = {}

    async def open(self) -> None:
        """Find the tasks, and check the settings.

        :raises ConfigError: there are no tasks, one cannot be read, or there is no such agent.
        """
        if not self.argument:
            raise ConfigError("name the directory of the tasks: harbor:DIRECTORY")
        # Otherwise LiteLLM fetches prices from GitHub when it is imported.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._splits = await asyncio.to_thread(_read, self.argument)
        await asyncio.to_thread(self._check)

    def splits(self) -> Sequence[str]:
        """Return ``train``, or the names of the directories that contain tasks."""
        return tuple(self._splits)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, by the names of their directories."""
        return self._splits[split]

    def capacity(self) -> int | None:
        return self.settings.max_episodes

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Run a trial with the agent of the settings.

        :raises EnvironmentFailedError: the environment, the endpoint or the verifier failed.
        """
        from ajet_sources_harbor.agents import agent_config

        agent = agent_config(self.settings, episode)
        return await self._trial(task, agent, episode.base_url, episode.api_key)

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Run Harbor's agent ``oracle`` for ``reference``, and ``nop``.

        :raises EnvironmentFailedError: the environment or the verifier failed.
        """
        from harbor.models.trial.config import AgentConfig

        agent = _PROBES.get(probe)
        if agent is None or (agent == "oracle" and not (task.payload / "solution").is_dir()):
            return None
        return await self._trial(task, AgentConfig(name=agent), "", "")

    def _check(self) -> None:
        from ajet_sources_harbor.agents import check_profile, is_installed

        is_installed(self.settings.agent)
        check_profile(self.settings)

    async def _trial(self, task: Task, agent: Any, base_url: str, key: str) -> EpisodeOutcome:
        from ajet_sources_harbor.trials import TrialTerms, run_trial

        settings = self.settings
        directory = Path(tempfile.mkdtemp(prefix="ajet-trial-"))
        install = settings.install
        try:
            return await run_trial(
                TrialTerms(
                    task=task.payload,
                    agent=agent,
                    environment=self._environment(base_url),
                    directory=directory,
                    install=settings.environment != "sandbox" if install is None else install,
                    settings=settings,
                )
            )
        finally:
            await asyncio.shield(asyncio.to_thread(self._put_away, directory, key))

    def _environment(self, base_url: str) -> Any:
        from harbor.models.trial.config import EnvironmentConfig

        settings = self.settings
        name, options = settings.environment, dict(settings.environment_options)
        if name == "sandbox":
            return EnvironmentConfig(
                import_path="ajet_sources_harbor.environment:SandboxEnvironment",
                kwargs={
                    "sandbox": settings.sandbox,
                    "sandbox_settings": dict(settings.sandbox_settings),
                    "endpoint": base_url,
                    "read_only": [str(path) for path in settings.read_only],
                    "path": list(settings.path),
                    "run": settings.run_steps,
                    "python": settings.python,
                },
            )
        which: Mapping[str, Any] = {"import_path": name} if ":" in name else {"type": name}
        return EnvironmentConfig(**which, kwargs=options)

    def _put_away(self, directory: Path, key: str) -> None:
        """Keep the files of a trial without the key, or remove them."""
        kept = self.settings.trials
        if kept is not None:
            for file in directory.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    data = file.read_bytes()
                    masked = data.replace(key.encode(), b"***") if key else data
                    target = kept / file.relative_to(directory)
                    with contextlib.suppress(OSError):
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(masked)
        shutil.rmtree(directory, ignore_errors=True)


def _read(argument: str) -> dict[str, list[Task]]:
    """Return the tasks by split.

    :raises ConfigError: there are none, or one cannot be read or has another format.
    """
    root = Path(argument).expanduser().absolute()
    if not root.is_dir():
        raise ConfigError(f"there is no directory {root}")
    if (root / _CONFIG).is_file():
        return {"train": [_task(root, root.name)]}
    directories = sorted(entry for entry in root.iterdir() if entry.is_dir())
    if direct := [entry for entry in directories if (entry / _CONFIG).is_file()]:
        return {"train": [_task(entry, entry.name) for entry in direct]}
    splits = {
        split.name: [
            _task(entry, f"{split.name}/{entry.name}")
            for entry in sorted(split.iterdir())
            if (entry / _CONFIG).is_file()
        ]
        for split in sorted(directories, key=lambda entry: (entry.name != "train", entry.name))
    }
    splits = {name: tasks for name, tasks in splits.items() if tasks}
    if not splits and (old := next(root.rglob(_OLD_CONFIG), None)) is not None:
        raise ConfigError(
            f"{old.parent} is a task of Terminal-Bench 1, and the source harbor takes those of "
            "Terminal-Bench 2, Harbor's: convert it with harbor task migrate -i "
            f"{old.parent.parent} -o NEW_DIRECTORY"
        )
    if not splits:
        raise ConfigError(f"{root} has no directory with a {_CONFIG}, which a task of Harbor has")
    return splits


def _task(directory: Path, name: str) -> Task:
    from harbor.models.task.task import Task as HarborTask

    try:
        config = HarborTask(directory).config
    except AjetError:
        raise
    # It fails in many ways: in TOML, in a field, for a missing file.
    except Exception as error:
        raise ConfigError(f"{directory} is not a task of Harbor: {error}") from error
    # Harbor itself takes any version.
    known = str(type(config).model_fields["schema_version"].default)
    if config.schema_version.partition(".")[0] != known.partition(".")[0]:
        raise ConfigError(
            f"{directory / _CONFIG} has the schema version {config.schema_version}; harbor "
            f"{version('harbor')} reads {known}: take the task set for this version, or upgrade "
            "the source (pip install --upgrade agentjet-sources-harbor)"
        )
    return Task(id=name, payload=directory)
