"""The choice of a run's store: made by the server's settings, and noted for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import (
    AjetError,
    ConfigError,
    StoreError,
    StoreUnavailableError,
    UnreadableFileError,
)
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import CallTotals, RunRecord, SampleStore, WorkerContext
from ajet_core.plugin import PluginManager
from ajet_installation.settings import SECRET_KEY, StoreSettings
from ajet_server.store.connection_strings import place_of
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
    write_whole(run_dir / NOTE, json.dumps(_note(chosen)).encode())


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
    noted = _noted(run)
    if noted is None:
        return make_store(chosen, plugins, run)
    known = chosen.settings if chosen.name == noted.name else {}
    # A database may have another address here.
    secrets = {key: value for key, value in known.items() if SECRET_KEY.search(key)}
    merged = {**_over(noted.settings, known), **secrets}
    return make_store(noted.model_copy(update={"settings": merged}), plugins, run)


def noted_otherwise(run: Path, chosen: StoreSettings) -> StoreSettings | None:
    """Return the settings of the store that a run directory names, None if they are `chosen`.

    Secrets are those of `chosen` if it leads to the same place.

    :raises UnreadableFileError: the note is damaged.
    """
    noted = _noted(run)
    if noted is None:
        return None
    same = _note(chosen)
    if {"name": noted.name, "settings": noted.settings} == same:
        return None
    if noted.name != chosen.name:
        return noted
    secrets = {
        key: value
        for key, value in chosen.settings.items()
        if SECRET_KEY.search(key) and noted.settings.get(key) in (None, same["settings"].get(key))
    }
    return noted.model_copy(update={"settings": {**noted.settings, **secrets}})


async def require_noted_store(chosen: StoreSettings, plugins: PluginManager, run_dir: Path) -> None:
    """Check that a server's store has the records of the run, if a run directory names another.

    :raises ConfigError: it has not, or the other store cannot be read.
    :raises StoreUnavailableError: the server's store cannot be read now.
    """
    noted = noted_otherwise(run_dir, chosen)
    if noted is None:
        return
    where = f"{run_dir / NOTE} says that the records of the run are in {_named(noted)}"
    ways = (
        f"to move the records, run `ajet store copy {run_dir}`; to begin without them, or if you "
        "have moved them yourself, remove the file"
    )
    try:
        before = await _state(make_store(noted, plugins, run_dir))
    except AjetError as error:
        raise ConfigError(
            f"{where}, which cannot be read ({error.message}), and [store] is {_named(chosen)}: "
            f"restore the settings; {ways}",
            param="store",
        ) from error
    if before is None:
        return
    try:
        now = await _state(make_store(chosen, plugins, run_dir))
    except StoreUnavailableError:
        raise
    except StoreError:
        # It was not created yet.
        now = None
    if now != before:
        has = "has no run" if now is None else "has other records"
        raise ConfigError(
            f"{where}, and [store] is {_named(chosen)}, which {has}: {ways}", param="store"
        )


async def _state(store: SampleStore) -> tuple[RunRecord, CallTotals, int] | None:
    """Return by what stores of one run are compared, None without a run."""
    await store.open(read_only=True)
    try:
        run = await store.get_run()
        if run is None:
            return None
        return run, await store.call_totals(), len(await store.steps())
    finally:
        await store.close()


def _named(chosen: StoreSettings) -> str:
    settings = ", ".join(f"{key}: {value}" for key, value in _note(chosen)["settings"].items())
    return f"the store {chosen.name!r}" + (f" ({settings})" if settings else "")


def _note(chosen: StoreSettings) -> dict[str, Any]:
    note = {"name": chosen.name, "settings": _without_secrets(chosen.settings)}
    read: dict[str, Any] = json.loads(json.dumps(note, default=str))
    return read


def _noted(run: Path) -> StoreSettings | None:
    """:raises UnreadableFileError: the note is damaged."""
    try:
        note = read_json(run / NOTE)
    except FileNotFoundError:
        return None
    name, settings = note.get("name"), note.get("settings")
    if not (isinstance(name, str) and name and isinstance(settings, dict)):
        raise UnreadableFileError(
            f"{run / NOTE} does not name the run's store: remove the file, and choose the store "
            "in the settings"
        )
    return StoreSettings(name=name, settings=settings)


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            kept[key] = _without_secrets(value)
        elif not SECRET_KEY.search(key):
            kept[key] = value
        elif key == "dsn" and (place := place_of(str(value))):
            kept[key] = place
    return kept


def _over(noted: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; noted values take precedence over known ones."""
    both = {**known, **noted}
    for key, value in noted.items():
        if isinstance(value, Mapping) and isinstance(known.get(key), Mapping):
            both[key] = _over(value, known[key])
    return both
