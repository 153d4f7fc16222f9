"""``python -m ajet_cli.plugin_projects.probe DISTRIBUTION``: import a plugin and describe it.

Reads the documents of the README from the standard input, as a JSON array of objects. Prints
`Probed` as JSON. The metadata and modules of the distribution must be on the path.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ajet_cli.plugin_projects.shown_settings import find_settings
from ajet_core.errors import AjetError
from ajet_core.plugin import ComponentSpec, KindName, PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.plugin.kinds import BY_NAME
from ajet_core.plugin.targets import import_target
from ajet_installation.check_plugin import find_problem


@dataclass(frozen=True)
class Probed:
    """What importing a plugin shows.

    :param problem: why it cannot be used, "" if it can.
    :param hooks: names of the hooks that it implements.
    :param components: kind and name of each component.
    :param imported: names of other packages that the hooks module imports, such as ``torch``.
    :param targets: modules of targets that the hooks module imports.
    :param undocumented: settings without a description.
    :param refused: why settings that the README shows are not valid.
    """

    problem: str = ""
    hooks: tuple[str, ...] = ()
    components: tuple[tuple[KindName, str], ...] = ()
    imported: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    undocumented: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def probe(distribution: str, documents: list[dict[str, Any]]) -> Probed:
    """Import the hooks modules of a distribution, then all that they name.

    :param documents: of the README, with settings.
    """
    points = [
        point
        for point in installed_entry_points()
        if point.dist is not None and point.dist.name == distribution
    ]
    manager = PluginManager(entry_points=points)
    before = set(sys.modules)
    infos = manager.plugins(load=True)
    modules = set(sys.modules) - before
    own = {info.module.partition(".")[0] for info in infos}
    components = {c for info in infos if not info.problem for c in info.components}
    specs = [
        (kind, name, manager.component(kind, name))
        for kind in BY_NAME
        for name in manager.names(kind)
        if f"{kind}:{name}" in components
    ]
    return Probed(
        problem=find_problem(manager, distribution),
        hooks=tuple(sorted({hook for info in infos for hook in info.hooks})),
        components=tuple((kind, name) for kind, name, _ in specs),
        imported=tuple(sorted({m.partition(".")[0] for m in modules} - own - _ALWAYS)),
        targets=tuple(sorted({spec.target.partition(":")[0] for *_, spec in specs} & modules)),
        undocumented=tuple(
            f"{settings.__name__}.{name}"
            for settings in {spec.settings: None for *_, spec in specs}
            for settings in [import_target(settings, "settings", "")]
            for name in _undocumented(settings)
        ),
        refused=tuple(_refused(manager, specs, documents)),
    )


def _refused(
    manager: PluginManager,
    specs: Sequence[tuple[KindName, str, ComponentSpec]],
    documents: list[dict[str, Any]],
) -> Iterator[str]:
    for kind, name, spec in specs:
        for settings in find_settings(documents, BY_NAME[kind], name) if kind != "command" else ():
            try:
                manager.validate_settings(spec, settings)
            except AjetError as error:
                yield f"{kind} {name!r}: {error.message}"


_PACKAGES = ("agentjet", "ajet_cli", "ajet_core", "ajet_installation")
_ALWAYS = frozenset({*sys.stdlib_module_names, *_PACKAGES})


def _undocumented(settings: type[BaseModel]) -> list[str]:
    fields = settings.model_fields
    text = "\n".join(inspect.getdoc(cls) or "" for cls in settings.__mro__)
    documented = set(re.findall(r":(?:param|ivar) (\w+):", text))
    return [name for name in fields if name not in documented and not fields[name].description]


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(probe(sys.argv[1], json.load(sys.stdin)))))
