"""Whether trials on swarm servers can run on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_installation.interpreters import find_engine, find_trainer, plugin_manager
from ajet_installation.local_workers import check_components, worker_settings
from ajet_installation.settings import Settings
from ajet_research.swarm.boxed import check_room, check_sandbox
from ajet_research.swarm.settings import SwarmSettings

_NEEDED = ("torch", "transformers", "renderers", "openai", "aiohttp", "starlette")


def missing_packages() -> list[str]:
    """Return the packages that trials need and that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def check_machine(settings: SwarmSettings) -> None:
    """Check that a trial can create its model, play its world, and train.

    :raises ConfigError: something is not installed, or a component cannot have its settings.
    :raises SandboxError: there is no sandbox for the code of an arm, or no room for its files.
    """
    if missing := missing_packages():
        raise ConfigError(
            f"trials on swarm servers need packages that are not installed ({', '.join(missing)}): "
            "pip install 'agentjet[demo]>=0.1'"
        )
    if settings.program_count:
        check_room(settings.program_count)
        with tempfile.TemporaryDirectory(prefix="ajet-arm-") as folder:
            asyncio.run(check_sandbox(Path(folder)))
    engine, trainer = settings.config["engine"], settings.config["trainer"]
    here = Path.cwd()
    check_components(here, worker_settings(here), engine=engine["name"], trainer=trainer["name"])
    plugins = plugin_manager(Settings())
    for spec, chosen in (
        (find_engine(plugins, engine["name"]), engine),
        (find_trainer(plugins, trainer["name"]), trainer),
    ):
        plugins.validate_settings(spec, chosen["settings"])
