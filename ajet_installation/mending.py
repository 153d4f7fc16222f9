"""The commands that fix the problems found by `ajet doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ajet_core.plugin.targets import CORE_DISTRIBUTION
from ajet_installation.conflicts import (
    Conflict,
    Want,
    backend_distributions,
    backends_of,
)
from ajet_installation.environment import Environment, create_command
from ajet_installation.recipes import Device, Recipe
from ajet_installation.requirements import Packages, Unmet, compatible


@dataclass(frozen=True, slots=True)
class Mending:
    """The facts from which fixes are derived.

    :param packages: distributions installed here.
    :param environments: existing environments by name.
    :param device: the device for which environments would be created.
    """

    packages: Packages
    conflicts: Sequence[Conflict]
    environments: Mapping[str, Environment]
    device: Device

    def of_conflict(self, conflict: Conflict) -> str:
        """Return a fix: a common version, compatible backends, or an environment for a backend."""
        pair = conflict.exclusive
        if pair is not None and conflict.package == CORE_DISTRIBUTION:
            # This agentjet stays, because its other plugins need it.
            return _upgrade(conflict.unmet)
        if pair is not None:
            return self._of_pair(pair)
        # A distribution that moves out because of another conflict need not be considered here.
        unsuited = {want.name for want in conflict.unmet}
        for other in self.conflicts:
            if other.exclusive is not None and unsuited <= {other.exclusive[0].name}:
                return self._of_pair(other.exclusive)
        return pip_line([conflict.pip_argument])

    def _of_pair(self, pair: tuple[Want, Want]) -> str:
        mine, others = (backends_of(want, self.packages) for want in pair)
        for two in product(mine, others):
            if two[0] is not two[1] and self.device == "gpu" and not cannot_share(two, self.device):
                return pip_line([_line(two, self.device)])
        for moved in (*mine, *others):
            if names := backend_distributions(moved, self.packages):
                uninstall = f"pip uninstall --yes {' '.join(names)}"
                if moved.name in self.environments:
                    return uninstall
                return f"{create_command(moved.name, self.device)} && {uninstall}"
        return _upgrade(pair)

    def of_unmet(self, problems: Iterable[Unmet]) -> str:
        """Return one command for all unmet requirements of a distribution."""
        conflicts = {conflict.package: conflict for conflict in self.conflicts}
        wanted = []
        for problem in problems:
            conflict = conflicts.get(canonicalize_name(Requirement(problem.wanted).name))
            if conflict is not None and conflict.exclusive is not None:
                return self.of_conflict(conflict)
            wanted.append(problem.wanted if conflict is None else conflict.pip_argument)
        return pip_line(wanted)


def _upgrade(wants: Iterable[Want]) -> str:
    return f"pip install --upgrade {' '.join(dict.fromkeys(want.name for want in wants))}"


def cannot_share(chosen: Iterable[Recipe], device: Device) -> list[str]:
    """Return why pip refuses to install backends together, for each such pair."""
    reasons = []
    for first, second in combinations(chosen, 2):
        one, other = first.needs, second.needs
        clashes = [
            f"{first.name} needs {package} {one[package]}, and {second.name} needs {package} "
            f"{other[package]}"
            for package in sorted(set(one) & set(other))
            if not compatible(one[package], other[package])
        ]
        if clashes:
            reasons.append(
                f"{_line((first, second), device)} cannot be installed together: "
                f"{'; '.join(clashes)}. Create an environment for each: ajet env create "
                f"{first.name}, ajet env create {second.name}"
            )
    return reasons


def _line(chosen: Iterable[Recipe], device: Device) -> str:
    return f"{CORE_DISTRIBUTION}[{','.join(recipe.extra_name(device) for recipe in chosen)}]"


def pip_line(wanted: Iterable[str]) -> str:
    """Return the command that installs requirements."""
    return "pip install " + " ".join(f"'{requirement}'" for requirement in dict.fromkeys(wanted))
