"""Names of sources: ``NAME:ARGUMENT?key=value``, or the path of a dataset."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from packaging.utils import canonicalize_name

from ajet_core.alike import did_you_mean
from ajet_core.errors import ConfigError
from ajet_core.interfaces import TaskSource
from ajet_core.plugin import PluginManager
from ajet_core.plugin.targets import CORE_DISTRIBUTION, extras_with
from ajet_installation.component_settings import component_settings
from ajet_installation.interpreters import local_manager
from ajet_installation.requirements import by_name, unmet
from ajet_sources.isolation import IsolatedSource

ROWS = "rows"
FORM = (
    "NAME:ARGUMENT?key=value, such as reasoning_gym:chain_sum?size=500, or a file or directory "
    "of rows"
)

_NAME = re.compile(r"([a-z][a-z0-9_-]*)(?::(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceName:
    """What the name of a source says.

    :param name: of the component.
    :param argument: what the source takes its tasks from, "" if nothing was given.
    :param settings: override those of ``[sources.NAME]``; values are strings, or JSON where they
        look like it. ``a.b=1`` is ``{"a": {"b": 1}}``.
    """

    name: str
    argument: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def parse_source(text: str, known: Collection[str]) -> SourceName:
    """Parse the name of a source.

    ``?`` in an argument is written ``%3F``, and ``&`` in a value ``%26``. A text without a name
    is the path of a file or directory for the source ``rows``.

    :param known: names of the sources that are installed.
    :raises ConfigError: the text is not of this form, or no such source is installed.
    """
    head, question, query = text.partition("?")
    if not head.strip():
        raise ConfigError(f"{text!r} does not name a source: write {FORM}", param="source")
    settings = _settings(text, query) if question else {}
    match = _NAME.fullmatch(head)
    if match and match[1] in known:
        return SourceName(match[1], unquote(match[2] or ""), settings)
    path = unquote(head)
    looks_like_name = match is not None and match[2] is not None
    if Path(path).exists() or (Path(path).suffix and not looks_like_name):
        return SourceName(ROWS, path, settings)
    name = match[1] if match else head
    extras = extras_with(f"agentjet-sources-{name}") if match else []
    if extras:
        raise ConfigError(
            f"the source {name!r} is not installed: pip install 'agentjet[{extras[0]}]>=0.1'",
            param="source",
        )
    raise ConfigError(
        f"there is no source {name!r} and no file {path!r}; installed sources: "
        f"{', '.join(sorted(known)) or 'none'}{did_you_mean(name, sorted(known))}. Write {FORM}, "
        "and install the plugin of the source (ajet plugins)",
        param="source",
    )


def load_source(
    source: str | SourceName,
    settings: Mapping[str, Any] | None = None,
    plugins: PluginManager | None = None,
) -> TaskSource:
    """Create the source that a name says; open it with ``async with``.

    Modules that it names are also searched for in the current directory, as ``python -m`` does.

    :param settings: override those of the name and of ``[sources.NAME]`` in ``ajet.toml``.
    :param plugins: the plugin manager to use; None uses that of this process.
    :raises ConfigError: the name or its settings are invalid, or the library of its tasks is
        installed in a version that its plugin does not support.
    :raises PluginError: its plugin cannot be used, or several plugins register the name.
    """
    manager = plugins or local_manager()
    if "" not in sys.path:
        sys.path.insert(0, "")
    parsed = source
    if isinstance(parsed, str):
        parsed = parse_source(parsed, manager.names("source"))
    spec = manager.source(parsed.name)
    _check_versions(parsed.name, manager.owner(spec))
    given = {**parsed.settings, **(settings or {})}
    created = manager.create(spec, component_settings(manager, spec, given), parsed.argument)
    return IsolatedSource(created, manager.describe(spec))


def _check_versions(name: str, plugin: str | None) -> None:
    """Refuse a library of another version, in which tasks or their format may be others.

    A library that is missing is reported when it is imported.

    :param plugin: the distribution of the source.
    :raises ConfigError: one is installed.
    """
    if plugin is None or plugin == CORE_DISTRIBUTION:
        return
    installed = by_name(distributions())
    if canonicalize_name(plugin) not in installed:
        return
    if others := [want for want in unmet(plugin, installed) if want.found is not None]:
        wanted = " ".join(f"'{want.wanted}'" for want in others)
        raise ConfigError(
            f"the source {name!r} cannot be used: {'; '.join(map(str, others))}. Install the "
            f"version that it supports (pip install {wanted}), or a newer plugin (pip install "
            f"--upgrade {plugin})",
            param="source",
        )


def _settings(text: str, query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise ConfigError(
            f"the settings of the source {text!r} must be key=value, joined by &", param="source"
        ) from error
    settings: dict[str, Any] = {}
    for key, value in pairs:
        *outer, last = key.split(".")
        place = settings
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or last in place or not all([*outer, last]):
            raise ConfigError(f"the source {text!r} sets {key!r} twice, or badly", param=key)
        place[last] = _value(value, nested=bool(outer))
    return settings


def _value(text: str, *, nested: bool) -> Any:
    """Return JSON as what it means; a single text is left to the type of its setting."""
    if not nested and not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
