"""Settings of the components that programs make by name: those of ``ajet.toml`` and their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ajet_core.alike import did_you_mean
from ajet_core.interfaces import ComponentSettings
from ajet_core.plugin import (
    AgentSpec,
    JudgeSpec,
    PluginManager,
    ReaderSpec,
    SandboxSpec,
    SourceSpec,
    WorldSpec,
)
from ajet_core.plugin.kinds import kind_of
from ajet_installation.settings import Settings

_log = logging.getLogger("ajet.settings")
_reported: set[tuple[str, str]] = set()


def component_settings(
    plugins: PluginManager,
    spec: AgentSpec | WorldSpec | ReaderSpec | JudgeSpec | SandboxSpec | SourceSpec,
    given: Mapping[str, Any] | None = None,
) -> ComponentSettings:
    """Return the checked settings of a component, from ``ajet.toml`` (such as ``[worlds.NAME]``).

    A table of a component that is not installed is reported once, in the log. This is not
    an error, because environments with different plugins may share the file.

    :param given: override values of the table.
    :raises ConfigError: a value is invalid or a key unknown.
    :raises PluginLoadError: the settings class cannot be imported.
    """
    component_kind = kind_of(spec)
    kind, section = component_kind.name, component_kind.set_by.partition(".")[0]
    tables: Mapping[str, Mapping[str, Any]] = getattr(Settings(), section)
    known = plugins.names(kind)
    for name in sorted(set(tables) - set(known)):
        if (kind, name) in _reported:
            continue
        _reported.add((kind, name))
        _log.warning(
            "the settings [%s.%s] are not used: no usable plugin provides %s %r; known: %s%s",
            section,
            name,
            kind,
            name,
            ", ".join(known) or "none",
            did_you_mean(name, known),
        )
    return plugins.validate_settings(spec, {**tables.get(spec.name, {}), **(given or {})})
