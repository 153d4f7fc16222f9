"""``python -m ajet_installation.check_plugin DISTRIBUTION``: check a plugin's imports."""

from __future__ import annotations

import sys

from ajet_core.errors import PluginError
from ajet_core.plugin import PluginManager
from ajet_core.plugin.targets import import_target


def find_problem(manager: PluginManager, distribution: str, place: str) -> str:
    """Return the first problem of a distribution's plugins, "" if there is none.

    :param place: what declares the packages that targets need, for the message.
    """
    infos = [info for info in manager.plugins(load=True) if info.distribution == distribution]
    if not infos:
        return f"{distribution} contains no plugin"
    for info in infos:
        if info.problem:
            return info.problem
        for component in info.components:
            kind, _, name = component.partition(":")
            target = manager.component(kind, name).target  # type: ignore[arg-type]
            try:
                import_target(target, component, place)
            except PluginError as error:
                return error.message
    return ""


if __name__ == "__main__":
    sys.exit(find_problem(PluginManager(), sys.argv[1], "the environment's recipe") or 0)
