"""``ajet research try``: one trial of each arm, before a study is registered."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ajet_research.arenas import Arena, TrialBlueprint, registered_arena
from ajet_research.leader import check_machine
from ajet_research.planning import search_settings
from ajet_research.registration import code_of, register
from ajet_research.runners import settled_attempt, write_blueprint
from ajet_research.search.sampling import proposed_values
from ajet_research.study import Scalar, Study, arm_name, canonical, parse_study, study_text
from ajet_research.worker import LOG, result_path

_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class TriedArm:
    """What became of one trial of an arm. It has no outcome: those are for looks.

    :param arm: levels by factor, or values of a search's parameters.
    :param seconds: wall time.
    :param problem: why the trial failed; "" if it did not.
    :param log: the end of what it printed, if it failed.
    """

    arm: str
    seconds: float
    problem: str
    log: str


def try_arms(
    source: Path,
    changes: Mapping[str, Scalar] | None = None,
    *,
    on_arm: Callable[[TriedArm], object] | None = None,
) -> list[TriedArm]:
    """Run one trial of each arm of a study file, with a seed that the study does not use.

    Of a search, its first candidate is tried, and one candidate with each program. Trials run one
    after another on this machine, in a temporary directory. Nothing of them is kept.

    :param changes: settings of the arena for these trials alone, such as fewer steps.
    :param on_arm: called after each trial.
    :raises ConfigError: the study is invalid or refused, or the arena refuses a change.
    """
    study = parse_study(study_text(source), str(source))
    registration = register(study, source.resolve().parent)
    check_machine(registration)
    arena = registered_arena(study.base.arena, registration.files)
    code = code_of(study, registration.directory)
    seed = max(study.seeds.stop, study.search.seeds.stop if study.search else 0)
    blueprints = {}
    for arm, settings in _tried(study, arena).items():
        resolved = arena.resolve({**settings, **(changes or {})})
        blueprints[arm] = TrialBlueprint(
            arena=study.base.arena,
            evaluator=arena.evaluator(resolved),
            settings=resolved,
            seed=seed,
            seconds=study.budget.trial_seconds,
            disk_mib=study.budget.trial_disk_mib,
            code=code,
        )
    tried = []
    for arm, blueprint in blueprints.items():
        tried.append(_trial(arm, arena, blueprint))
        if on_arm is not None:
            on_arm(tried[-1])
    return tried


def _tried(study: Study, arena: Arena) -> dict[str, dict[str, Scalar]]:
    """Return by arm what its trial sets."""
    arms = {arm_name(arm): study.settings(arm) for arm in study.arms if not study.is_chosen(arm)}
    if (search := study.search) is None:
        return arms
    candidates = [proposed_values(search, 1, [])[0]]
    for name, parameter in search.parameters.items():
        if parameter.path in arena.programs:
            candidates += [{**candidates[0], name: choice} for choice in parameter.choices]
    return arms | {
        canonical(candidate): search_settings(study, search, 0, candidate)
        for candidate in candidates
    }


def _trial(arm: str, arena: Arena, blueprint: TrialBlueprint) -> TriedArm:
    with tempfile.TemporaryDirectory(prefix="ajet-try-", ignore_cleanup_errors=True) as folder:
        trial = Path(folder)
        write_blueprint(trial, blueprint)
        # The trial ends with its worker, and the worker with this process's interrupt.
        with subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "ajet_research.worker", folder, "1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                status = worker.wait()
            finally:
                worker.kill()
        if not result_path(trial, 1).exists():
            return TriedArm(arm, 0.0, f"the worker ended with {status}", "")
        settled = settled_attempt(arena, blueprint, trial, 1)
        problem = settled.evidence.failed if settled.evidence else settled.cause
        log = trial / LOG
        said = log.read_text(encoding="utf-8", errors="replace") if problem and log.exists() else ""
        return TriedArm(arm, settled.seconds, problem, said[-_SHOWN:])
