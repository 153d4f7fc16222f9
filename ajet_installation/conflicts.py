"""Conflicts between installed distributions, with causes and fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name

from ajet_core.plugin.discovery import PLUGIN_GROUP
from ajet_core.plugin.targets import CORE_DISTRIBUTION
from ajet_installation.recipes import Recipe, recipes
from ajet_installation.requirements import (
    Packages,
    compatible,
    fits,
    needs,
    requirements_of,
    version_of,
)


@dataclass(frozen=True, slots=True)
class Want:
    """A requirement of one distribution on another.

    :param name: the distribution that has the requirement.
    :param by: its name and version.
    """

    name: NormalizedName
    by: str
    package: NormalizedName
    accepted: SpecifierSet

    def __str__(self) -> str:
        return f"{self.by} needs {self.package}{self.accepted}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A distribution that is installed in a version that another one does not accept.

    :param unmet: the requirements that do not accept it.
    :param wants: all requirements on the distribution, including those.
    """

    package: NormalizedName
    found: str
    unmet: tuple[Want, ...]
    wants: tuple[Want, ...]

    @property
    def accepted(self) -> SpecifierSet:
        """The versions that all of them accept; may be empty."""
        both = SpecifierSet()
        for want in self.wants:
            both &= want.accepted
        return both

    @property
    def exclusive(self) -> tuple[Want, Want] | None:
        """Two requirements that no version meets, the first unmet; None if one meets all."""
        pairs = [pair for pair in combinations(self.wants, 2) if not _share(*pair)]
        # Prefer the requirements of the backends themselves to those of our plugins.
        pairs.sort(
            key=lambda pair: (
                not set(pair) & set(self.unmet),
                any(want.name.startswith(CORE_DISTRIBUTION) for want in pair),
            )
        )
        if not pairs:
            return None
        first, second = pairs[0]
        return (first, second) if first in self.unmet else (second, first)

    def __str__(self) -> str:
        if (pair := self.exclusive) is not None:
            first, second = pair
            return f"{first}, and {second}: no version satisfies both ({self.found} is installed)"
        return f"{'; '.join(map(str, self.unmet))}; {self.found} is installed"

    @property
    def pip_argument(self) -> str:
        """The requirement to pass to pip, if a version meets all."""
        pins = [one for one in self.accepted if one.operator == "==" and "*" not in one.version]
        return f"{self.package}{pins[0] if pins else self.accepted}"


def find_conflicts(packages: Packages, as_made: Mapping[str, str] | None = None) -> list[Conflict]:
    """Find conflicts among agentjet, its plugins, their backends, and their dependencies.

    :param packages: the installed distributions.
    :param as_made: versions by name that were tested together when an environment was created,
        whatever requirements they declare.
    """
    tried = {
        name for name, version in (as_made or {}).items() if _version(name, packages) == version
    }
    concerned = _closure(_plugins(packages), packages)
    concerned = concerned.union(*(needed for _, needed in _reach(packages)))
    wants: dict[NormalizedName, list[Want]] = {}
    # By name: the order of packages is that of the directory's files.
    for name in sorted(packages):
        for want in _wants_of(name, packages):
            wants.setdefault(want.package, []).append(want)
    conflicts = []
    for package, of_package in sorted(wants.items()):
        version = version_of(packages[package])
        unmet = [
            want
            for want in of_package
            if want.name in concerned
            and not fits(version, want.accepted)
            and not {package, want.name} <= tried
        ]
        if unmet:
            conflicts.append(Conflict(package, version, tuple(unmet), tuple(of_package)))
    return conflicts


def _version(name: str, packages: Packages) -> str | None:
    distribution = packages.get(canonicalize_name(name))
    return None if distribution is None else version_of(distribution)


def backends_of(want: Want, packages: Packages) -> list[Recipe]:
    """Return the backends that need the distribution; none if agentjet itself does."""
    reached = _reach(packages)
    if any(recipe is None and want.name in needed for recipe, needed in reached):
        return []
    return [recipe for recipe, needed in reached if recipe is not None and want.name in needed]


def backend_distributions(recipe: Recipe, packages: Packages) -> list[NormalizedName]:
    """Return the names under which a backend is installed, without the plugin."""
    # Other distributions need torch too.
    if recipe.name == "torch":
        return []
    names = {recipe.name, recipe.cpu.provides.get(recipe.name, recipe.name)}
    return sorted(name for name in map(canonicalize_name, names) if name in packages)


def _share(first: Want, second: Want) -> bool:
    return compatible(str(first.accepted), str(second.accepted))


def _reach(packages: Packages) -> list[tuple[Recipe | None, set[NormalizedName]]]:
    """Return installed dependencies of agentjet, as None, and of each backend with its plugin."""
    core = canonicalize_name(CORE_DISTRIBUTION)
    reached: list[tuple[Recipe | None, set[NormalizedName]]] = [(None, _closure([core], packages))]
    for recipe in recipes().values():
        roots = [*backend_distributions(recipe, packages), canonicalize_name(recipe.plugin)]
        reached.append((recipe, _closure(roots, packages)))
    return reached


def _closure(roots: Iterable[NormalizedName], packages: Packages) -> set[NormalizedName]:
    return set().union(*(needs(root, packages) for root in roots if root in packages))


def _plugins(packages: Packages) -> list[NormalizedName]:
    return [
        name
        for name, distribution in packages.items()
        if distribution.entry_points.select(group=PLUGIN_GROUP)
    ]


def _wants_of(name: NormalizedName, packages: Packages) -> list[Want]:
    distribution = packages[name]
    by = f"{distribution.name} {version_of(distribution)}"
    requirements = [(by, requirement) for requirement in requirements_of(distribution)]
    if name == canonicalize_name(CORE_DISTRIBUTION):
        backends = {one for r in recipes().values() for one in backend_distributions(r, packages)}
        requirements += [
            (f"{CORE_DISTRIBUTION}[{extra}]", requirement)
            for extra in distribution.metadata.get_all("Provides-Extra") or []
            for requirement in requirements_of(distribution, frozenset([extra]))
            if canonicalize_name(requirement.name) in backends
        ]
    return [
        Want(name, by, _called(requirement.name, packages), requirement.specifier)
        for by, requirement in requirements
        if str(requirement.specifier) and _called(requirement.name, packages) in packages
    ]


def _called(name: str, packages: Packages) -> NormalizedName:
    """Return the installed name of a distribution: some builds have other names."""
    usual = canonicalize_name(name)
    if usual in packages:
        return usual
    others = (canonicalize_name(r.cpu.provides.get(usual, usual)) for r in recipes().values())
    return next((other for other in others if other in packages), usual)
