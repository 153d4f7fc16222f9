"""The plugin of the trainer ``witness``. Light, as hooks have to be: the server reads it without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint

from ajet_backend_torch import hooks

from ajet_core.plugin import PluginManager
from ajet_core.plugin.components import TrainerSpec
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.plugin.spec import hookimpl


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """The trainer ``witness``."""
    (torch,) = hooks.ajet_register_trainers()
    return (
        TrainerSpec(
            name="witness",
            target="recovery_witness:WitnessTrainer",
            settings=torch.settings,
            summary="The torch trainer, which remembers its batches; for a benchmark",
            capabilities=torch.capabilities,
        ),
    )


class _Distribution:
    name = "witness"
    version = "0"


def witness_plugins() -> PluginManager:
    """The installed plugins and the witness, which is behind no entry point."""
    points = [
        EntryPoint("witness", "recovery_plugins", "agentjet"),
        EntryPoint("1.0", "recovery_plugins", "agentjet.hook_api"),
    ]
    for point in points:
        vars(point)["dist"] = _Distribution()
    return PluginManager(entry_points=[*installed_entry_points(), *points])
