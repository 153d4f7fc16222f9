"""The sources from which agentjet and a backend's plugin are installed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import ajet_core
from ajet_core.errors import ConfigError
from ajet_installation.recipes import Recipe


@dataclass(frozen=True, slots=True)
class Source:
    """Arguments for pip.

    :param core: arguments that install agentjet; empty to omit it.
    :param plugin: arguments that install the plugin.
    :param distributions: the plugin distributions that these install.
    :param note: why there is no plugin.
    """

    core: tuple[str, ...] = ()
    plugin: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    note: str = ""


def source_tree() -> Path | None:
    """Return the source tree that this agentjet runs from, if any."""
    directory = Path(ajet_core.__file__).parents[1]
    return directory if _is_tree(directory) else None


def source_of(wanted: Recipe, tree: Path | None, find_links: Path | None) -> Source:
    """Return the source of agentjet and a recipe's plugin: a source tree, or wheels.

    :param tree: a source tree; packages are installed in editable mode.
    :param find_links: a directory of wheels.
    :raises ConfigError: `tree` is not a source tree.
    """
    names = (wanted.plugin,)
    if tree is not None:
        if not _is_tree(tree):
            raise ConfigError(f"{tree} is not a source tree of agentjet")
        core = ("-e", f"{tree.absolute()}[delta,server]")
        directory = tree.absolute() / wanted.source
        if not (directory / "pyproject.toml").is_file():
            note = f"the plugin {wanted.plugin} is left out: {directory} does not exist"
            return Source(core, note=note)
        return Source(core, ("-e", str(directory)), names)
    links = ("--find-links", str(find_links.absolute())) if find_links is not None else ()
    core = (*links, f"agentjet[delta,server]=={ajet_core.__version__}")
    pattern = f"{wanted.plugin.replace('-', '_')}-*.whl"
    if find_links is not None and not any(find_links.glob(pattern)):
        note = f"the plugin {wanted.plugin} is left out: no {pattern} in {find_links}"
        return Source(core, note=note)
    return Source(core, (*links, f"{wanted.plugin}>=0.1"), names)


def _is_tree(directory: Path) -> bool:
    try:
        project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        return bool(project["project"]["name"] == "agentjet")
    except (OSError, ValueError, KeyError, TypeError):
        return False
