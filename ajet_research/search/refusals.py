"""What a search must satisfy: before it starts, and each candidate before it is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ajet_core.errors import ConfigError
from ajet_research.arenas import Arena
from ajet_research.inference import MOST_SEEDS
from ajet_research.parts import Scalar
from ajet_research.planning import search_settings
from ajet_research.search.space import BASELINE, SEARCH, Search
from ajet_research.study import Study, arm_name, canonical


def search_refusals(study: Study, arena: Arena) -> Iterator[str]:
    """Yield why a study cannot start with its search."""
    if (search := study.search) is None:
        return
    fresh, used = study.seeds, search.seeds
    common = range(max(fresh.start, used.start), min(fresh.stop, used.stop))
    if common:
        yield (
            f"The search and the confirmation share {len(common)} seeds: the search has "
            f"{used.start} to {used.stop - 1}, and the confirmation {fresh.start} to "
            f"{fresh.stop - 1}. What is chosen on seeds cannot be confirmed on them. Write "
            f"search.first_seed = {fresh.start + MOST_SEEDS}."
        )
    try:
        settings = [
            arena.resolve(search_settings(study, search, rung)) for rung in range(len(search.rungs))
        ]
    except ConfigError as error:
        yield f"The trials of the search: {error.message}"
        return
    yield from _unknown_paths(search, arena, settings[0])
    if common:
        return
    for rung, rung_settings in enumerate(settings):
        if shared := _seen(study, arena, search, rung, rung_settings):
            yield (
                f"The search would choose on {shared[0]} of the {shared[1]} tasks that confirm its "
                "choice, so the confirmation could not be trusted. Give the search another split "
                "in search.set, or other seeds."
            )
            return


def _unknown_paths(search: Search, arena: Arena, settings: Mapping[str, Scalar]) -> Iterator[str]:
    for name, parameter in search.parameters.items():
        known = [path for path in settings if f"{path}.".startswith(f"{parameter.path}.")]
        if not known:
            yield (
                f"The parameter {name!r} searches the setting {parameter.path!r}, which the arena "
                f"does not have; it has: {', '.join(sorted(arena.resolve({})))}."
            )


def program_refusals(
    study: Study, arena: Arena, settings: dict[str, dict[str, Scalar]]
) -> Iterator[str]:
    """Yield why programs among the values of parameters cannot be candidates.

    All of them are read before the study starts, so that no candidate has other code than that.

    :param settings: receives the settings of candidates with each of them.
    """
    if (search := study.search) is None:
        return
    for name, parameter in search.parameters.items():
        if parameter.path not in arena.programs:
            continue
        texts: dict[Scalar, Scalar] = {}
        for choice in parameter.values or []:
            try:
                resolved = arena.resolve(search_settings(study, search, 0, {name: choice}))
            except ConfigError as error:
                yield f"The choice {canonical(choice)} of {name!r}: {error.message}"
                continue
            settings[f"{name}={canonical(choice)}"] = resolved
            if (first := texts.setdefault(resolved[parameter.path], choice)) != choice:
                yield (
                    f"The choices {canonical(first)} and {canonical(choice)} of {name!r} are the "
                    "same code. Remove one of them."
                )


def _seen(
    study: Study, arena: Arena, search: Search, rung: int, settings: Mapping[str, Scalar]
) -> tuple[int, int] | None:
    """Return how many tasks of the confirmation choose candidates, and how many there are."""
    hidden: frozenset[str] = frozenset()
    for arm in study.arms:
        if not study.is_chosen(arm):
            own = arena.resolve(study.settings(arm))
            hidden |= frozenset().union(*(arena.splits(own, s).held_out for s in study.seeds))
    seeds = search.seeds_of(rung)
    seen = frozenset().union(*(arena.splits(settings, seed).held_out for seed in seeds))
    return (len(hidden & seen), len(hidden)) if hidden & seen else None


def candidate_refusal(
    study: Study,
    arena: Arena,
    values: Mapping[str, Scalar],
    earlier: Sequence[Mapping[str, Scalar]],
) -> str:
    """Return why a candidate is not tried; "" if it is.

    :param earlier: the values of candidates before it.
    """
    search = study.search
    assert search is not None
    if any(canonical(dict(one)) == canonical(dict(values)) for one in earlier):
        return "it was proposed before"
    paths = [parameter.path for parameter in search.parameters.values()]
    try:
        for rung in range(len(search.rungs)):
            own = arena.resolve(search_settings(study, search, rung, values))
            if problem := _not_scored(study, arena, search, rung, own):
                return problem
        for arm in study.arms:
            if study.is_chosen(arm):
                own = arena.resolve(study.settings(arm, values))
                bare = arena.resolve(study.settings({**arm, SEARCH: BASELINE}))
                if problem := _not_comparable(own, bare, paths):
                    return f"{arm_name(arm)}: {problem}"
                if leaked := _leaked(arena, own, study.seeds):
                    return leaked
    except ConfigError as error:
        return error.message
    return ""


def _not_comparable(own: Mapping[str, Scalar], bare: Mapping[str, Scalar], paths: list[str]) -> str:
    both = own.keys() | bare.keys()
    differing = sorted(k for k in both if canonical(own.get(k)) != canonical(bare.get(k)))
    if not differing:
        return "it is the baseline"
    others = [
        key for key in differing if not any(f"{key}.".startswith(f"{path}.") for path in paths)
    ]
    return f"it changes more than its parameters: {', '.join(others)}" if others else ""


def _not_scored(
    study: Study, arena: Arena, search: Search, rung: int, settings: Mapping[str, Scalar]
) -> str:
    if not arena.evaluator(settings):
        return "its evaluator is not frozen"
    if _seen(study, arena, search, rung, settings):
        return "it would be chosen on tasks that confirm it"
    return _leaked(arena, settings, search.seeds_of(rung))


def _leaked(arena: Arena, settings: Mapping[str, Scalar], seeds: range) -> str:
    for seed in seeds:
        splits = arena.splits(settings, seed)
        if splits.train & splits.held_out:
            return "it trains on tasks that it is evaluated on"
    return ""
