"""The catalogue: what the sources of plugins are, from a file beside each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import AjetError, ConfigError, PluginError
from ajet_core.plugin import PluginManager

CATALOGUE_FILE = "catalogue.toml"
"""In the package of the source's class, with a table ``[NAME]`` for each source of the plugin."""

_Line = Annotated[str, Field(min_length=1, pattern=r"^[^\n|]+$")]


class CatalogueEntry(BaseModel):
    """What a user wants to know of a source before installing it.

    :param title: of the library or collection.
    :param package: the distribution that the tasks come from, "" if they are the user's own.
    :param licence: of `package` as its metadata say, or of the source if there is no package.
    :param size: the number of tasks, or what it depends on.
    :param tasks: how many tasks the first split of `train` has, if they are the same everywhere.
    :param offline: whether tasks and rewards need no network, once all is installed.
    :param reward: what gives the reward.
    :param train: the source, as ``ajet train`` takes it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: _Line
    package: str = ""
    licence: _Line
    size: _Line
    tasks: Annotated[int, Field(ge=1)] | None = None
    offline: bool
    reward: _Line
    train: _Line


def read_catalogue(text: str, origin: str) -> dict[str, CatalogueEntry]:
    """Read the entries of a file, by the names of their sources.

    :param origin: of the text, for messages.
    :raises ConfigError: it is not such a file.
    """
    try:
        tables = tomllib.loads(text)
        return {name: CatalogueEntry.model_validate(table) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{origin} is not a catalogue of sources: {error}") from error


def entries_of(package: str) -> dict[str, CatalogueEntry]:
    """Return the entries of the sources of a package, by their names; none if it has no file.

    :raises ConfigError: its file is invalid.
    :raises PluginError: it cannot be imported, or is a module.
    """
    try:
        file = files(package) / CATALOGUE_FILE
    # Whatever the plugin's package raises.
    except Exception as error:
        raise PluginError(f"the package {package} cannot be imported: {error}") from error
    if not file.is_file():
        return {}
    return read_catalogue(file.read_text(encoding="utf-8"), f"{package}/{CATALOGUE_FILE}")


def catalogue(
    manager: PluginManager, names: Iterable[str] | None = None
) -> dict[str, tuple[str, CatalogueEntry | None, str]]:
    """Return the installed sources by name: summary, entry, and what is wrong with the source.

    :param names: None is all of them.
    """
    listed: dict[str, tuple[str, CatalogueEntry | None, str]] = {}
    for name in sorted(manager.names("source") if names is None else names):
        summary = ""
        try:
            spec = manager.source(name)
            summary = spec.summary
            package = spec.target.partition(":")[0].partition(".")[0]
            listed[name] = (summary, entries_of(package).get(name), "")
        except AjetError as error:
            listed[name] = (summary, None, str(error))
    return listed


def licence_of(distribution: str) -> str:
    """Return the licence that an installed distribution states, "" if it states none in a word.

    That is its expression, else its text if that is one line, else the names of its classifiers.

    :raises ConfigError: it is not installed.
    """
    try:
        fields = metadata(distribution).json
    except PackageNotFoundError as error:
        raise ConfigError(f"{distribution} is not installed") from error
    if fields.get("license_expression"):
        return str(fields["license_expression"])
    text = str(fields.get("license") or "").strip()
    if text and "\n" not in text:
        return text
    return ", ".join(
        classifier.rpartition(" :: ")[2]
        for classifier in fields.get("classifier") or []
        if classifier.startswith("License ::")
    )
