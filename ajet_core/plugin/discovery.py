"""Discovery of plugins from the metadata of installed distributions, without importing them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points

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
    return [*entry_points(group=PLUGIN_GROUP), *entry_points(group=HOOK_API_GROUP)]


def discover(candidates: Iterable[EntryPoint], blocked: Iterable[str] = ()) -> list[FoundPlugin]:
    """Return all plugins, sorted by name, as known from metadata only.

    :param blocked: plugin names; ``name@distribution`` blocks one of several plugins of that name.
    """
    points = list(candidates)
    declared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for point in points:
        if point.group == HOOK_API_GROUP:
            declared[_distribution(point)[0], point.value].append(point.name)
    refused_names = frozenset(blocked)
    plugins = [
        _found(point, declared[_distribution(point)[0], point.value], refused_names)
        for point in points
        if point.group == PLUGIN_GROUP
    ]
    plugins.sort(key=lambda plugin: (plugin.info.name, plugin.info.distribution))
    return _refuse_duplicates(plugins)


def _distribution(point: EntryPoint) -> tuple[str, str]:
    # A distribution whose metadata is damaged has neither name nor version.
    if point.dist is None:
        return "unknown", "unknown"
    return point.dist.name or "unknown", point.dist.version or "unknown"


def _found(point: EntryPoint, declared: list[str], blocked: frozenset[str]) -> FoundPlugin:
    distribution, version = _distribution(point)
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
        return _refused(
            FoundPlugin(point, info),
            PluginApiError(
                f"{describe(info)} was not imported: {problem}\n"
                f"To continue without it, {way_out(info)}.",
                param="plugins.blocked",
            ),
        )
    return FoundPlugin(point, info)


def _refused(plugin: FoundPlugin, refusal: PluginError) -> FoundPlugin:
    return FoundPlugin(
        plugin.entry_point, replace(plugin.info, problem=refusal.message), refusal=refusal
    )


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
        result.append(
            _refused(
                plugin,
                PluginConflictError(
                    f"plugin {plugin.info.name!r} is provided by several distributions, "
                    f"{owners}, so none of them was imported: uninstall one, or set "
                    f"plugins.blocked in ajet.toml to {choices}",
                    param="plugins.blocked",
                ),
            )
        )
    return result
