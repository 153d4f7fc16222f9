"""Recipes of environments for backends: one TOML file per backend, included in the core.

They are in the core, not in the backends' plugins, because an environment is created where the
plugin is not installed. Constraints are versions that were installed and tested, so that
environments are reproducible.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ajet_core.errors import ConfigError

Device = Literal["cpu", "gpu"]
RECIPES = Path(__file__).parent / "recipes"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is not a version range") from error
    return text


class Step(_Part):
    """One ``pip install``.

    :param requirements: a requirements file next to the recipe.
    :param no_deps: install exactly these packages, without dependencies.
    """

    packages: tuple[str, ...] = ()
    requirements: str | None = None
    no_deps: bool = False

    @model_validator(mode="after")
    def _installs_something(self) -> Step:
        if not self.packages and self.requirements is None:
            raise ValueError("a step needs packages or requirements")
        return self


class Build(_Part):
    """A backend on one kind of device.

    :param python: the supported range of Python versions.
    :param gigabytes: required free disk space.
    :param imports: modules that must be importable in a finished environment.
    :param prepare: Python code to run before the imports.
    :param provides: distributions with other names here, by their usual name.
    :param constraints: a file of pinned versions next to the recipe.
    :param variables: environment variables of workers that run in it.
    """

    python: str
    gigabytes: Annotated[float, Field(gt=0)]
    imports: tuple[str, ...]
    prepare: str = ""
    provides: dict[str, str] = Field(default_factory=dict)
    constraints: str | None = None
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    variables: dict[str, str] = Field(default_factory=dict)

    _python_is_a_range = field_validator("python")(_checked_range)


class Recipe(_Part):
    """A backend; the extra of agentjet with its name installs it on a GPU, with the server.

    :param plugin: the distribution of its plugin.
    :param source: directory of that plugin in agentjet's source tree.
    :param components: names of the engines and trainers that the plugin registers.
    :param needs: version ranges of packages that other backends need too, as the extra requires
        them, to find out whether both fit into one environment.
    :param directory: directory of the files that the recipe names.
    """

    name: str
    directory: Path
    summary: str
    plugin: str
    source: str
    components: tuple[str, ...] = ()
    needs: dict[str, str] = Field(default_factory=dict)
    cpu: Build
    gpu: Build

    @field_validator("needs")
    @classmethod
    def _needs_are_ranges(cls, needs: dict[str, str]) -> dict[str, str]:
        return {name: _checked_range(text) for name, text in needs.items()}

    def build(self, device: Device) -> Build:
        """Return the build for `device`."""
        return self.cpu if device == "cpu" else self.gpu

    def newer_than_tested(self, installed: Mapping[str, str]) -> dict[str, str]:
        """Return the versions with which this was tested, of packages that have newer ones.

        Only the backend and what `needs` names are compared, up to the second number of a version.

        :param installed: versions by normalised name; without the backend, nothing is compared.
        """
        usual = {canonicalize_name(name) for name in (self.name, *self.needs)}
        names = usual | {canonicalize_name(other) for other in self.cpu.provides.values()}
        backend = {self.name, self.cpu.provides.get(self.name, self.name)}
        if self.cpu.constraints is None or not backend & installed.keys():
            return {}
        newer = {}
        for line in (self.directory / self.cpu.constraints).read_text("utf-8").splitlines():
            name, pinned, version = line.partition("==")
            here = installed.get(canonicalize_name(name))
            if pinned and here is not None and canonicalize_name(name) in names:
                with suppress(InvalidVersion):
                    if Version(here).release[:2] > Version(version).release[:2]:
                        newer[name] = version
        return newer

    def extra_name(self, device: Device) -> str:
        """Return the extra of agentjet that installs the backend with the server on `device`."""
        return self.build(device).provides.get(self.name, self.name)

    def digest(self, device: Device) -> str:
        """Return a digest of everything that determines `device`'s environment."""
        build = self.build(device)
        sha = hashlib.sha256(build.model_dump_json().encode())
        for name in (build.constraints, *(step.requirements for step in build.steps)):
            if name is not None:
                sha.update((self.directory / name).read_bytes())
        return sha.hexdigest()[:16]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file, whose name is the recipe's.

    :raises ConfigError: the file cannot be read, or is not a valid recipe.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return Recipe.model_validate({**table, "name": path.stem, "directory": path.parent})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a valid recipe of an environment: {error}") from error


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by name."""
    return {path.stem: read_recipe(path) for path in sorted(RECIPES.glob("*.toml"))}


def recipe(name: str) -> Recipe:
    """Return the recipe of a backend.

    :raises ConfigError: there is none; the message lists the existing ones.
    """
    known = recipes()
    if name not in known:
        raise ConfigError(
            f"there is no recipe for an environment {name!r}; known: {', '.join(known)}"
        )
    return known[name]


def recipe_of_plugin(distribution: str) -> Recipe | None:
    """Return the recipe with this plugin distribution, or None."""
    return next((known for known in recipes().values() if known.plugin == distribution), None)


def recipe_of_component(name: str) -> Recipe | None:
    """Return the recipe whose plugin registers this engine or trainer, or None."""
    return next((known for known in recipes().values() if name in known.components), None)
