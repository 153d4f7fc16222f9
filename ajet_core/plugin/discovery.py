"""Discovery of plugins from the metadata of installed distributions, without importing them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path

from ajet_core.errors import PluginApiError, PluginConflictError, PluginError
from ajet_core.plugin.compat import hook_api_problem, parse_hook_api
from ajet_core.plugin.components import PluginInfo

PLUGIN_GROUP = "agentjet"
HOOK_API_GROUP = "agentjet.hook_api"


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    """An entry point of the group ``agentjet``.

    :param refusal: why it must not be imported; None if it may be.
    """

    entry_point: EntryPoint
    info: PluginInfo
    refusal: PluginError | None = None


def describe(info: PluginInfo) -> str:
    """Return a plugin's name for messages, with its distribution and version."""
    return f"plugin {info.name!r} (distribution {info.distribution} {info.version})"


def way_out(info: PluginInfo) -> str:
    """Return advice for a plugin that cannot be used."""
    return (
        f"upgrade it (pip install --upgrade {info.distribution}), uninstall it "
        f"(pip uninstall {info.distribution}), or block it (plugins.blocked in ajet.toml: "
        f'["{info.name}"])'
    )


def installed_entry_points() -> list[EntryPoint]:
    """Return the entry points of both groups from all installed distributions."""
    return list(_read(tuple((path, _changed(path)) for path in sys.path)))


# It reads a file of each distribution. Installing one changes its directory.
@lru_cache(maxsize=1)
def _read(_directories: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    points = entry_points()
    return (*points.select(group=PLUGIN_GROUP), *points.select(group=HOOK_API_GROUP))


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def discover(candidates: Iterable[EntryPoint], blocked: Iterable[str] = ()) -> list[FoundPlugin]:
    """Return all plugins, sorted by name, as known from metadata only.

    :param blocked: plugin names; ``name@distribution`` blocks one of several plugins of that name.
    """
    points = list(candidates)
    declared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for point in points:
        if point.group == HOOK_API_GROUP:
            declared[_distribution(point.dist)[0], point.value].append(point.name)
    refused_names = frozenset(blocked)
    plugins = [
        _found(point, declared[_distribution(point.dist)[0], point.value], refused_names)
        for point in points
        if point.group == PLUGIN_GROUP
    ]
    plugins.sort(key=lambda plugin: (plugin.info.name, plugin.info.distribution))
    return _refuse_duplicates(plugins)


@lru_cache
def _distribution(dist: Distribution | None) -> tuple[str, str]:
    # A distribution whose metadata is damaged has neither name nor version.
    return (dist and dist.name) or "unknown", (dist and dist.version) or "unknown"


def _found(point: EntryPoint, declared: list[str], blocked: frozenset[str]) -> FoundPlugin:
    distribution, version = _distribution(point.dist)
    versions = [parsed for text in declared if (parsed := parse_hook_api(text)) is not None]
    info = PluginInfo(
        name=point.name,
        distribution=distribution,
        version=version,
        module=point.value,
        hook_api=max(versions, default=None),
        blocked=bool(blocked & {point.name, f"{point.name}@{distribution}"}),
    )
    if info.blocked:
        return FoundPlugin(point, replace(info, problem="blocked by the setting plugins.blocked"))
    if problem := hook_api_problem(declared, point.value):
        message = f"{describe(info)} was not imported: {problem}\n"
        message += f"To continue without it, {way_out(info)}."
        refusal = PluginApiError(message, param="plugins.blocked")
        return FoundPlugin(point, replace(info, problem=message), refusal)
    return FoundPlugin(point, info)


def _refuse_duplicates(plugins: list[FoundPlugin]) -> list[FoundPlugin]:
    by_name: dict[str, list[FoundPlugin]] = defaultdict(list)
    for plugin in plugins:
        if not plugin.info.blocked:
            by_name[plugin.info.name].append(plugin)
    result = []
    for plugin in plugins:
        namesakes = by_name[plugin.info.name]
        if plugin.info.blocked or len(namesakes) == 1:
            result.append(plugin)
            continue
        owners = " and ".join(f"{p.info.distribution} {p.info.version}" for p in namesakes)
        choices = " or ".join(f'["{p.info.name}@{p.info.distribution}"]' for p in namesakes)
        message = (
            f"plugin {plugin.info.name!r} is provided by several distributions, {owners}, so none "
            f"of them was imported: uninstall one, or set plugins.blocked in ajet.toml to {choices}"
        )
        refusal = PluginConflictError(message, param="plugins.blocked")
        result.append(
            FoundPlugin(plugin.entry_point, replace(plugin.info, problem=message), refusal)
        )
    return result
