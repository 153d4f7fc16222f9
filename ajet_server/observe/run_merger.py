"""The merger of a run, for the server and for tools that read the run's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from ajet_core.errors import AjetError, DamagedRecordError, PluginError
from ajet_core.interfaces import Merger, RunRecord, WorkerContext
from ajet_core.plugin import PluginManager
from ajet_core.protocol import ComponentChoice, RunConfig
from ajet_core.timeline import Call, TokenTree
from ajet_server.observe.checked_components import CheckedMerger


def make_merger(
    chosen: ComponentChoice, plugins: PluginManager, context: WorkerContext
) -> CheckedMerger:
    """Create the merger that a run's configuration chooses; its errors name its plugin.

    :raises ConfigError: no merger has this name, or its settings are wrong.
    :raises PluginError: its plugin cannot be used.
    """
    spec = plugins.merger(chosen.name)
    settings = plugins.validate_settings(spec, chosen.settings)
    return CheckedMerger(plugins.create(spec, settings, context), plugins.describe(spec))


class _Merging(BaseModel):
    """The needed part of a stored configuration; the rest may be of another version."""

    merger: ComponentChoice = RunConfig.model_fields["merger"].default
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RunMerger:
    """The merger of a stored run.

    :param name: the name in the run's configuration.
    """

    name: str
    merger: Merger

    @classmethod
    def of(cls, run: RunRecord | None, plugins: PluginManager, run_dir: Path) -> Self:
        """Create the merger of a run; the default one if no run was configured.

        This may import a plugin: do not call it on an event loop that serves requests.

        :raises DamagedRecordError: the stored configuration does not say which one it is.
        :raises PluginError: the merger cannot be used here; the message says what to install.
        """
        config = _Merging() if run is None else _stored(run)
        context = WorkerContext(run_dir=run_dir, seed=config.seed)
        try:
            return cls(config.merger.name, make_merger(config.merger, plugins, context))
        except AjetError as error:
            raise PluginError(
                f"the run's merger {config.merger.name!r} cannot be used here: {error.message}"
            ) from error

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge the calls of one episode.

        :raises PluginError: the merger failed.
        """
        return self.merger.merge(episode_id, calls)


def _stored(run: RunRecord) -> _Merging:
    try:
        return _Merging.model_validate_json(run.config_json)
    except ValidationError as error:
        raise DamagedRecordError(
            f"the stored configuration of run {run.run_id} does not say how its calls are merged: "
            "it is damaged, restore the store from a backup"
        ) from error
