"""Comparison of requirements with installed distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

Packages = Mapping[NormalizedName, Distribution]
"""Installed distributions by normalised name."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that is not met.

    :param by: the distribution that has the requirement.
    :param wanted: the requirement, in pip's syntax.
    :param found: the installed version, None if it is not installed.
    """

    by: str
    wanted: str
    found: str | None

    def __str__(self) -> str:
        have = "is not installed" if self.found is None else f"{self.found} is installed"
        return f"{self.by} needs {self.wanted}, {have}"


def by_name(distributions: Iterable[Distribution]) -> dict[NormalizedName, Distribution]:
    """Index distributions by normalised name; the first one of a name is the one imported."""
    indexed: dict[NormalizedName, Distribution] = {}
    for distribution in distributions:
        # Each reading of it parses all metadata. If these are damaged, there is none.
        if name := distribution.name:
            indexed.setdefault(canonicalize_name(name), distribution)
    return indexed


def unmet(
    root: str,
    installed: Packages,
    *,
    extras: Iterable[str] = (),
    provides: Mapping[str, str] | None = None,
    deep: bool = False,
) -> list[Unmet]:
    """Return the requirements of a distribution that `installed` does not meet.

    :param root: its name; it must be installed.
    :param extras: extras to include.
    :param provides: distributions with other names, by usual name.
    :param deep: also check its dependencies.
    """
    names = {canonicalize_name(usual): other for usual, other in (provides or {}).items()}
    problems: list[Unmet] = []
    seen: set[tuple[NormalizedName, frozenset[str]]] = set()
    queue = [(canonicalize_name(root), frozenset(extras))]
    while queue:
        name, its_extras = queue.pop()
        if (name, its_extras) in seen:
            continue
        seen.add((name, its_extras))
        for requirement in requirements_of(installed[name], its_extras):
            wanted = canonicalize_name(requirement.name)
            wanted = canonicalize_name(names.get(wanted, wanted))
            there = installed.get(wanted)
            version = None if there is None else version_of(there)
            if version is None or not fits(version, requirement.specifier):
                problems.append(Unmet(installed[name].name, _as_pip_takes_it(requirement), version))
            elif deep:
                queue.append((wanted, frozenset(requirement.extras)))
    return problems


def needs(root: NormalizedName, installed: Packages) -> set[NormalizedName]:
    """Return an installed distribution and all its installed dependencies."""
    seen: set[tuple[NormalizedName, frozenset[str]]] = set()
    queue: list[tuple[NormalizedName, frozenset[str]]] = [(root, frozenset())]
    while queue:
        name, its_extras = queue.pop()
        if (name, its_extras) in seen or name not in installed:
            continue
        seen.add((name, its_extras))
        for requirement in requirements_of(installed[name], its_extras):
            queue.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen}


def requirements_of(
    distribution: Distribution, extras: frozenset[str] = frozenset()
) -> list[Requirement]:
    """Return the requirements of a distribution that apply here, skipping invalid ones.

    :param extras: extras to include.
    """
    return [
        requirement
        for requirement, marker in _parsed(distribution)
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


# Cached, because parsing takes milliseconds and is repeated often.
@lru_cache(maxsize=2048)
def version_of(distribution: Distribution) -> str:
    """Return the version of a distribution."""
    return distribution.version


@lru_cache(maxsize=2048)
def _parsed(distribution: Distribution) -> list[tuple[Requirement, Marker | None]]:
    requirements = []
    for line in distribution.requires or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        requirements.append((requirement, requirement.marker))
    return requirements


def fits(version: str, wanted: SpecifierSet) -> bool:
    """Return whether a version is in a range."""
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:
        # A version such as "unknown" cannot be compared.
        return True


def _as_pip_takes_it(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def compatible(first: str, second: str) -> bool:
    """Return whether any version is in both ranges.

    Only the ends of the ranges are tried, and the versions right below and above them, because
    membership does not change between two such neighbours.
    """
    both = SpecifierSet(first) & SpecifierSet(second)
    ends = [Version(clause.version.removesuffix(".*")) for clause in both]
    tried = [Version("0"), *ends]
    for end in ends:
        release = (*end.release, 0, 0)
        tried.append(Version(".".join(map(str, (*end.release, 1)))))
        tried.append(Version(".".join(map(str, (release[0], release[1] + 1)))))
        if release[1] > 0:
            tried.append(Version(f"{release[0]}.{release[1] - 1}.999"))
        elif release[0] > 0:
            tried.append(Version(f"{release[0] - 1}.999"))
    return any(both.contains(version, prereleases=True) for version in tried)
