"""The trials of a study: what runs, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ajet_research.arenas import Arena, TrialBlueprint
from ajet_research.parts import Scalar
from ajet_research.search.space import Search, candidate_arm
from ajet_research.study import Study, arm_name


def planned_trials(
    study: Study, arena: Arena, resolved: Mapping[str, dict[str, Scalar]], code: str
) -> tuple[dict[str, TrialBlueprint], dict[str, str]]:
    """Return the blueprints and arms of the trials that are compared, in their order.

    Block after block of one seed, and within it in an order drawn from the study.

    :param resolved: by arm, all settings of the arena.
    :param code: tree hash of the user's code; "" without.
    :raises ConfigError: an evaluator is not frozen.
    """
    evaluators = {name: arena.evaluator(settings) for name, settings in resolved.items()}
    key = study.digest()
    blueprints: dict[str, TrialBlueprint] = {}
    arms: dict[str, str] = {}
    baseline = arm_name(study.arms[0])
    for index, seed in enumerate(study.seeds):
        block = [(name, 0) for name in resolved]
        if index < study.inference.repeats and baseline in resolved:
            block.append((baseline, 1))
        block.sort(
            key=lambda one: hashlib.sha256(f"{key}/{seed}/{one[0]}/{one[1]}".encode()).digest()
        )
        for name, repeat in block:
            blueprint = TrialBlueprint(
                arena=study.base.arena,
                evaluator=evaluators[name],
                settings=resolved[name],
                seed=seed,
                repeat=repeat,
                seconds=study.budget.trial_seconds,
                disk_mib=study.budget.trial_disk_mib,
                code=code,
            )
            blueprints[blueprint.id] = blueprint
            arms[blueprint.id] = name
    return blueprints, arms


def compared_arms(
    study: Study, arena: Arena, chosen: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, dict[str, Scalar]]:
    """Return by arm all settings of the arena, of the arms whose settings are known.

    :param chosen: by level of the factor ``search``, the values of the candidate.
    :raises ConfigError: the arena refuses settings.
    """
    resolved = {}
    for arm in study.arms:
        level = str(arm.get("search", ""))
        if level in chosen or not study.is_chosen(arm):
            resolved[arm_name(arm)] = arena.resolve(study.settings(arm, chosen.get(level)))
    return resolved


def search_settings(
    study: Study, search: Search, rung: int, values: Mapping[str, Scalar] | None = None
) -> dict[str, Scalar]:
    """Return the arena's settings of trials in a rung (counted from 0), without its defaults."""
    own = {**search.set, **search.rungs[rung].set}
    return {**study.settings(search.arm), **own, **search.settings_of(values or {})}


def rung_trials(
    study: Study, arena: Arena, rung: int, candidates: Mapping[int, Mapping[str, Scalar]], code: str
) -> tuple[dict[str, TrialBlueprint], dict[str, str]]:
    """Return blueprints and arms of a search's trials in a rung: seed by seed, by candidate.

    :param candidates: by number, the values of the parameters.
    :raises ConfigError: the arena refuses settings.
    """
    assert study.search is not None
    blueprints, arms = {}, {}
    resolved = {
        number: arena.resolve(search_settings(study, study.search, rung, values))
        for number, values in candidates.items()
    }
    for seed in study.search.seeds_of(rung):
        for number, settings in resolved.items():
            blueprint = TrialBlueprint(
                arena=study.base.arena,
                evaluator=arena.evaluator(settings),
                settings=settings,
                seed=seed,
                seconds=study.budget.trial_seconds,
                disk_mib=study.budget.trial_disk_mib,
                code=code,
            )
            blueprints[blueprint.id] = blueprint
            arms[blueprint.id] = candidate_arm(number, rung)
    return blueprints, arms
