"""Wheels, distributions, recipes and environments that are made on the spot."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ajet_installation.recipes import Recipe, read_recipe

RECIPE = """
summary = "a backend"
plugin = "{plugin}"
source = "plugins/tiny"
{more}
[cpu]
python = ">=3.11"
gigabytes = {gigabytes}
imports = [{imports}]
provides = {{ heavy = "heavy-cpu" }}
constraints = "tiny.txt"
[[cpu.steps]]
packages = ["{package}"]
[cpu.variables]
TINY_MODE = "cpu"
[gpu]
python = ">=3.11"
gigabytes = 1
imports = ["tiny"]
[[gpu.steps]]
packages = ["tiny"]
"""


def tiny_recipe(
    directory: Path,
    *,
    package: str = "tiny",
    imports: str = '"tiny"',
    gigabytes: str = "0.001",
    constraints: str = "tiny==1.0\n",
    plugin: str = "tiny-plugin",
    more: str = "",
) -> Recipe:
    """A recipe in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tiny.txt").write_text(constraints)
    path = directory / "tiny.toml"
    path.write_text(
        RECIPE.format(
            package=package, imports=imports, gigabytes=gigabytes, plugin=plugin, more=more
        )
    )
    return read_recipe(path)


def metadata_text(name: str, version: str, requires: Sequence[str] = ()) -> str:
    """The METADATA of a distribution."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n"


def wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    requires: Sequence[str] = (),
    entry_points: str = "",
) -> Path:
    """A wheel with these files."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": metadata_text(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }
    record = f"{info}/RECORD"
    contents[record] = "".join(f"{path},,\n" for path in [*contents, record])
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
    return path


def distribution(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    entry_points: str = "",
    extras: Sequence[str] = (),
) -> None:
    """Metadata of a distribution in a directory of packages."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    text = metadata_text(name, version, requires)
    text += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    (info / "METADATA").write_text(text)
    (info / "entry_points.txt").write_text(entry_points)


HOOKS = """
from ajet_core.interfaces import EngineCapabilities
from ajet_core.plugin import EngineSpec, hookimpl


@hookimpl
def ajet_register_engines():
    capabilities = EngineCapabilities(weight_channels=("safetensors_dir",))
    return [EngineSpec(name="{name}", target="{target}", capabilities=capabilities)]
"""
TRAINER_HOOKS = """
from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec, hookimpl


@hookimpl
def ajet_register_trainers():
    capabilities = TrainerCapabilities(
        weight_channels=("safetensors_dir",), algorithm_fields=frozenset()
    )
    return [TrainerSpec(name="{name}", target="{target}", capabilities=capabilities)]
"""


def plugin(
    site: Path,
    name: str,
    *,
    component: str | None = None,
    hooks: str = HOOKS,
    requires: Sequence[str] = (),
    target: str = "nowhere:Engine",
) -> None:
    """A distribution whose plugin registers an engine, or a trainer.

    :param component: its name, that of the distribution by default.
    """
    module = f"{name.replace('-', '_')}_hooks"
    distribution(site, name, requires=requires, entry_points=plugin_entry_points(name, module))
    (site / f"{module}.py").write_text(hooks.format(name=component or name, target=target))


def plugin_entry_points(name: str, module: str) -> str:
    """The entry points of a plugin."""
    return f"[agentjet]\n{name} = {module}\n[agentjet.hook_api]\n1.0 = {module}\n"
