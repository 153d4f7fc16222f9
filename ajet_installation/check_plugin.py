"""``python -m ajet_installation.check_plugin DISTRIBUTION``: whether all that a plugin registers can be imported."""

from __future__ import annotations

import sys

from ajet_core.errors import PluginError
from ajet_core.plugin import PluginManager
from ajet_core.plugin.targets import import_target


def main(distribution: str) -> str:
    """What is wrong with the plugin of a distribution; "" if nothing is."""
    manager = PluginManager()
    infos = [info for info in manager.plugins(load=True) if info.distribution == distribution]
    if not infos:
        return f"{distribution} has no plugin"
    for info in infos:
        if info.problem:
            return info.problem
        for component in info.components:
            kind, _, name = component.partition(":")
            target = manager.component(kind, name).target  # type: ignore[arg-type]
            try:
                import_target(target, component, "the environment's recipe")
            except PluginError as error:
                return error.message
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) or 0)
