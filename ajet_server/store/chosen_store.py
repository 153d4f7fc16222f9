"""The choice of a run's store: made by the server's settings, and noted for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import UnreadableFileError
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_core.plugin import PluginManager
from ajet_installation.settings import SECRET_KEY, StoreSettings
from ajet_server.store.run_store import RunStore

NOTE = "store.json"
"""The file in a run directory that names the run's store."""


def make_store(chosen: StoreSettings, plugins: PluginManager, run_dir: Path) -> SampleStore:
    """Create the store that the settings choose; it is not open yet.

    :raises ConfigError: no store has this name, or its settings are wrong.
    :raises PluginError: the plugin cannot create it.
    """
    spec = plugins.store(chosen.name)
    settings = plugins.validate_settings(spec, chosen.settings)
    return plugins.create(spec, settings, WorkerContext(run_dir=run_dir))


def run_store(chosen: StoreSettings, plugins: PluginManager, run_dir: Path) -> RunStore:
    """Create the store of a server's run; errors as in `make_store`."""
    name = plugins.describe(plugins.store(chosen.name))
    return RunStore(make_store(chosen, plugins, run_dir), name, chosen.retry_seconds)


def note_store(chosen: StoreSettings, run_dir: Path) -> None:
    """Write the choice of a run's store, without secrets, to the run directory.

    :raises OSError: the note could not be written.
    """
    note = {"name": chosen.name, "settings": _without_secrets(chosen.settings)}
    write_whole(run_dir / NOTE, json.dumps(note, default=str).encode())


def store_of_run(run: Path, chosen: StoreSettings, plugins: PluginManager) -> SampleStore:
    """Create the store of a run, for reading while its server may be running.

    :param run: a run directory, or the file of a ``sqlite`` store.
    :param chosen: the local settings: they apply if the run directory has no note, and to secrets.
    :raises ConfigError: no store of that name is installed, or its settings are wrong.
    :raises UnreadableFileError: the note is damaged.
    """
    if run.is_file():
        chosen = StoreSettings(name="sqlite", settings={"file": run.name})
        return make_store(chosen, plugins, run.parent)
    try:
        note = read_json(run / NOTE)
    except FileNotFoundError:
        return make_store(chosen, plugins, run)
    name, settings = note.get("name"), note.get("settings")
    if not (isinstance(name, str) and name and isinstance(settings, dict)):
        raise UnreadableFileError(
            f"{run / NOTE} does not name the run's store: start the run's server once, or "
            "remove the file and choose the store in the settings"
        )
    known = chosen.settings if chosen.name == name else {}
    return make_store(StoreSettings(name=name, settings=_over(settings, known)), plugins, run)


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_secrets(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if not SECRET_KEY.search(key)
    }


def _over(noted: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; noted values take precedence over known ones."""
    both = {**known, **noted}
    for key, value in noted.items():
        if isinstance(value, Mapping) and isinstance(known.get(key), Mapping):
            both[key] = _over(value, known[key])
    return both
