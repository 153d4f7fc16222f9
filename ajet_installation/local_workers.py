"""Worker settings for a server that a program starts in another working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ajet_core.errors import ConfigError
from ajet_installation.environment import (
    DIRECTORY,
    create_command,
    environments_in,
    find_environments,
)
from ajet_installation.interpreters import (
    PREFIX,
    choose_interpreters,
    find_engine,
    find_trainer,
    plugin_manager,
    why_not_here,
)
from ajet_installation.recipes import recipe_of_component
from ajet_installation.settings import Settings, WorkerSettings

__all__ = ["check_components", "server_pythons", "worker_settings"]


def worker_settings(
    run_dir: Path,
    python: Mapping[str, str] | None = None,
    preload: Mapping[Literal["engine", "trainer"], str] | None = None,
) -> WorkerSettings:
    """Return the section `workers` of the user's settings, with absolute paths.

    Environments of the working directory are also used if the run directory is elsewhere.

    :param python: interpreters by component that override those of the settings.
    :param preload: components to preload instead of those of the settings.
    :raises ConfigError: the settings are invalid.
    """
    said = Settings().workers
    environments = said.environments
    if environments is None and Path.cwd() not in run_dir.absolute().parents:
        here = Path.cwd() / DIRECTORY
        environments = here if environments_in([here]) else None
    chosen = {**said.python, **(python or {})}
    return WorkerSettings(
        python={component: _absolute(path) for component, path in chosen.items()},
        environments=None if environments is None else environments.absolute(),
        preload=dict(said.preload if preload is None else preload),
    )


def server_pythons() -> dict[str, dict[str, str]]:
    """Return the interpreters of model servers in the user's settings, as the section `servers`.

    :raises ConfigError: the settings are invalid.
    """
    return {
        engine: {"python": _absolute(said.python)}
        for engine, said in Settings().servers.items()
        if said.python is not None
    }


def _absolute(python: str) -> str:
    # A name without a directory is looked up on the path.
    return (
        python if python.startswith(PREFIX) or "/" not in python else str(Path(python).absolute())
    )


def check_components(run_dir: Path, workers: WorkerSettings, *, engine: str, trainer: str) -> None:
    """Check components before a model is created in vain.

    :raises ConfigError: a component is not available; the message says how to install it.
    """
    settings = Settings(
        workers=workers.model_dump(), server={"run_dir": run_dir}, plugins={"blocked": []}
    )
    plugins = plugin_manager(settings)
    engine_spec, trainer_spec = find_engine(plugins, engine), find_trainer(plugins, trainer)
    chosen = choose_interpreters(settings, plugins, engine=engine_spec, trainer=trainer_spec)
    for kind, spec in (("engine", engine_spec), ("trainer", trainer_spec)):
        recipe = recipe_of_component(spec.name)
        if kind in chosen or recipe is None or recipe.name in find_environments(settings):
            continue
        if (said := settings.servers.get(spec.name)) is not None and said.python is not None:
            continue
        if why := why_not_here(recipe.plugin):
            raise ConfigError(
                f"the {kind} {spec.name!r} cannot run in this interpreter ({why}): create an "
                f"environment for it: {create_command(recipe.name, None)}",
                param="workers.python",
            )
