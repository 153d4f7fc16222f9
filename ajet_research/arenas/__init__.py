"""Arenas: the worlds in which trials run.

A distribution registers an arena as an entry point of the group ``agentjet.arenas``: its name, and
a subclass of `Arena` that is called without arguments. Only the arena that a study names is
imported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ajet_core.errors import ConfigError, PluginLoadError
from ajet_research.arenas.code import CODE, MOST_CODE, CodeArena, CodeFiles, changed_code
from ajet_research.arenas.interface import Arena, MetricSpec, Splits, TrialBlueprint, TrialEvidence

__all__ = [
    "CODE",
    "GROUP",
    "MOST_CODE",
    "Arena",
    "CodeArena",
    "CodeFiles",
    "MetricSpec",
    "Splits",
    "TrialBlueprint",
    "TrialEvidence",
    "arena_names",
    "changed_code",
    "load_arena",
    "read_evidence",
    "registered_arena",
]

GROUP = "agentjet.arenas"
_BUILT_IN = (
    EntryPoint("swarm", "ajet_research.swarm:SwarmArena", GROUP),
    EntryPoint("synthetic", "ajet_research.arenas.synthetic:SyntheticArena", GROUP),
    EntryPoint("versions", "ajet_research.versions:VersionsArena", GROUP),
)


@functools.cache
def _registered() -> tuple[EntryPoint, ...]:
    """The entry points of all distributions: reading them takes a tenth of a second."""
    return tuple(entry_points(group=GROUP))


def arena_names() -> list[str]:
    """Return the names of all arenas."""
    return sorted({point.name for point in (*_BUILT_IN, *_registered())})


def load_arena(name: str) -> Arena:
    """Return a registered arena.

    :raises ConfigError: there is none of this name, or two distributions have one.
    :raises PluginLoadError: importing it failed.
    """
    known: dict[str, list[EntryPoint]] = {}
    for point in (*_BUILT_IN, *_registered()):
        known.setdefault(point.name, []).append(point)
    if name not in known:
        raise ConfigError(f"Unknown arena {name!r}; known: {', '.join(sorted(known))}.")
    if len(known[name]) > 1:
        places = ", ".join(point.value for point in known[name])
        raise ConfigError(f"The arena {name!r} is registered more than once: {places}.")
    (point,) = known[name]
    try:
        arena = point.load()()
    except Exception as error:
        raise PluginLoadError(
            f"The arena {name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(arena, Arena):
        raise PluginLoadError(f"{point.value} is not a subclass of ajet_research.arenas.Arena.")
    return arena


def registered_arena(name: str, files: Mapping[str, str]) -> Arena:
    """Return the arena of a registered study.

    :param files: by path, the registered code of its arms.
    """
    return CodeArena(load_arena(name), CodeFiles(Path(), files))


def read_evidence(arena: Arena, blueprint: TrialBlueprint, store: Path) -> TrialEvidence:
    """Read the raw store of a trial.

    :return: each metric of the arena as a finite number, or none if the trial failed.
    :raises ConfigError: the store is damaged, however the arena notices that, or metrics are not
        those of the arena.
    """
    try:
        evidence = arena.evidence(blueprint, store)
        if evidence.failed:
            return replace(evidence, metrics={})
        _check_metrics(arena, evidence, store)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"The raw store {store} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return evidence


def _check_metrics(arena: Arena, evidence: TrialEvidence, store: Path) -> None:
    if evidence.metrics.keys() != arena.metrics.keys():
        raise ConfigError(
            f"The raw store {store} gives the metrics {', '.join(sorted(evidence.metrics))}, and "
            f"the arena has {', '.join(sorted(arena.metrics))}."
        )
    for name, value in evidence.metrics.items():
        if not math.isfinite(value):
            raise ConfigError(
                f"The raw store {store} gives {name} = {value}, which is not a finite number. If "
                "the arm caused it, the arena has to report that the trial failed."
            )
