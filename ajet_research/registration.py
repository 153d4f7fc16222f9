"""What a study must satisfy before it may start: each refusal has its number and the way out."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_research.arenas import Arena, CodeArena, CodeFiles, TrialBlueprint, load_arena
from ajet_research.inference import MOST_SEEDS, least_p, least_seeds
from ajet_research.planning import planned_trials
from ajet_research.report.prose import refusals
from ajet_research.search.refusals import program_refusals, search_refusals
from ajet_research.search.space import BASELINE, SEARCH
from ajet_research.study import Scalar, Study, arm_name, canonical, outcomes_of_tree

_ENUMERATED = 6
"""Comparisons whose verdicts are all enumerated: 5^6 combinations."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A study that may start.

    :param blueprints: by trial id, all trials that the study may need, in the order in which they
        start: block after block of one seed, arms within it in an order drawn from the study. Those
        of candidates of a search, and of arms that it chooses, are planned while it runs.
    :param arms: the arm of each trial.
    :param warnings: what the author should know, such as a low power.
    :param directory: relative paths of the study start here.
    :param files: by path, the code of arms, and that of candidates.
    :param searched: by what is searched, settings of candidates whose code no arm has.
    """

    study: Study
    blueprints: dict[str, TrialBlueprint]
    arms: dict[str, str]
    warnings: tuple[str, ...]
    directory: Path
    files: Mapping[str, str] = field(default_factory=dict)
    searched: Mapping[str, dict[str, Scalar]] = field(default_factory=dict)


def register(
    study: Study,
    directory: Path,
    *,
    code: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Registration:
    """Check a study, and resolve all its trials.

    :param directory: relative paths of the study start here.
    :param code: tree hash of the user's code; by default it is read from its repository.
    :param files: by path, the code of arms; by default it is read from its files.
    :raises ConfigError: the study is refused; each line of the message is one reason.
    """
    programs = CodeFiles(directory, files)
    arena = CodeArena(load_arena(study.base.arena), programs)
    refusals = [
        *_unknown_metrics(study, arena),
        *_out_of_reach(study),
        *_holes(study),
        *_unsupported(study),
    ]
    resolved: dict[str, dict[str, Scalar]] = {}
    unresolved: dict[str, list[str]] = {}
    known = [arm for arm in study.arms if not study.is_chosen(arm)]
    for arm in known:
        try:
            resolved[arm_name(arm)] = arena.resolve(study.settings(arm))
        except ConfigError as error:
            unresolved.setdefault(error.message, []).append(arm_name(arm))
    for why, those in unresolved.items():
        # What is wrong in all arms is listed once.
        shared = len(those) == len(known) > 1
        names = ["All arms"] if shared else [f"The arm {name}" for name in those]
        refusals += [f"{name}: {why}" for name in names]
    searched: dict[str, dict[str, Scalar]] = {}
    if len(resolved) == len(known):
        refusals += _same_arms(resolved)
        refusals += _confounds(study, arena, resolved)
        refusals += _leaks(study, arena, resolved)
        refusals += search_refusals(study, arena)
        refusals += program_refusals(study, arena, searched)
    if code is None:
        try:
            code = code_of(study, directory)
        except ConfigError as error:
            refusals.append(error.message)
    if refusals or code is None:
        raise ConfigError("The study is refused:\n" + "\n".join(f"- {one}" for one in refusals))
    blueprints, arms = planned_trials(study, arena, resolved, code)
    if over := list(_over_budget(study)):
        raise ConfigError("The study is refused:\n" + "\n".join(f"- {one}" for one in over))
    warnings = tuple(_weak(study))
    return Registration(
        study, blueprints, arms, warnings, directory, programs.texts, searched=searched
    )


def _unknown_metrics(study: Study, arena: Arena) -> Iterator[str]:
    known = ", ".join(arena.metrics)
    bounded = ", ".join(name for name, spec in arena.metrics.items() if spec.worst is not None)
    guardrails = [one.metric for one in study.outcome.guardrails]
    for metric in dict.fromkeys((study.outcome.metric, *guardrails)):
        if metric not in arena.metrics:
            yield (
                f"The evaluator of {study.base.arena} has no metric {metric!r}; it has: {known}."
            )
        elif arena.metrics[metric].worst is None and metric in guardrails:
            yield (
                f"The guardrail {metric!r} has no worst value, so that a failed trial could pass "
                f"it. Use a metric that has one: {bounded or 'there is none, so no guardrail'}."
            )
        elif arena.metrics[metric].worst is None and study.outcome.failed == "worst":
            yield (
                f"{metric!r} has no worst value, so that a failed trial would have no outcome. "
                "Write a number as outcome.failed."
            )


def _out_of_reach(study: Study) -> Iterator[str]:
    looks, count = study.inference.looks, len(study.compare)
    for index, look in enumerate(looks):
        alpha = study.alpha_of(index)
        if (reachable := least_p(look.seeds)) > alpha:
            least = least_seeds(alpha)
            way_out = (
                f"{least} seeds are the least: 2/2^{least} = {least_p(least):.2g}"
                if least <= MOST_SEEDS
                else f"even {MOST_SEEDS} seeds are too few; compare fewer arms"
            )
            shared = f" ({look.alpha:g} / {count} comparisons)" if count > 1 else ""
            yield (
                f"The look after {look.seeds} seeds can never show anything: the smallest p "
                f"value is 2/2^{look.seeds} = {reachable:.2g}, above its alpha of "
                f"{alpha:.2g}{shared}. {way_out}."
            )
    total = math.fsum(look.alpha for look in looks)
    if total > study.inference.alpha * (1 + 1e-9):
        yield (
            f"The alphas of the looks add up to {total:.4g}, above alpha = "
            f"{study.inference.alpha:g}. Give each look {study.inference.alpha / len(looks):.4g}, "
            "or divide alpha in another way."
        )


def _holes(study: Study) -> Iterator[str]:
    branches = study.decide
    for index, branch in enumerate(branches[:-1], 1):
        if branch.otherwise:
            yield f"Decision {index} is 'otherwise', so those after it can never apply. Move it."
    if branches[-1].otherwise:
        return
    if len(study.compare) > _ENUMERATED:
        yield "With so many comparisons, the last decision has to be 'otherwise = true'."
        return
    for verdicts in outcomes_of_tree(study):
        if not any(branch.applies(verdicts) for branch in branches):
            case = ", ".join(f"{id_} = {verdict!r}" for id_, verdict in verdicts.items())
            yield (
                f"The decisions have a hole: none applies to {case}. Add a branch, or end with "
                "'otherwise = true'."
            )
            return


def _unsupported(study: Study) -> Iterator[str]:
    for index, branch in enumerate(study.decide, 1):
        carried = [branch.allowed(comparison) for comparison in branch.when]
        for problem in refusals(branch.conclude, carried):
            yield f"The conclusion of decision {index}: {problem}."


def _same_arms(resolved: dict[str, dict[str, Scalar]]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name, settings in resolved.items():
        if (first := seen.setdefault(canonical(settings), name)) != name:
            yield (
                f"The arms {first} and {name} have the same settings once they are resolved, so "
                "they are one arm. Remove one of them, or set what they differ in."
            )


def _confounds(study: Study, arena: Arena, resolved: dict[str, dict[str, Scalar]]) -> Iterator[str]:
    for one in study.compare:
        # What a search changes is checked with each candidate; the factors beside it are here.
        sides = [{**side, SEARCH: BASELINE} if SEARCH in side else side for side in one.sides]
        if one.arm.get(SEARCH) != one.against.get(SEARCH) and sides[0] == sides[1]:
            continue
        try:
            arm, against = (
                resolved[arm_name(side)]
                if arm_name(side) in resolved
                else arena.resolve(study.settings(side))
                for side in sides
            )
        except ConfigError as error:
            yield f"The arms of {one.id!r}: {error.message}"
            continue
        differing = {key for key in arm.keys() | against.keys() if arm.get(key) != against.get(key)}
        # The value of a factor may be a table, whose keys are settings of their own.
        declared = {
            key
            for name, factor in study.factors.items()
            for key in differing
            if one.arm[name] != one.against[name] and f"{key}.".startswith(f"{factor.path}.")
        }
        if not differing:
            yield (
                f"The arms of {one.id!r} differ in nothing once they are resolved. Compare arms "
                "whose levels change a setting."
            )
        for key in sorted(differing - declared):
            yield (
                f"The arms of {one.id!r} differ in more than their factors: {key} is "
                f"{canonical(arm.get(key))} and {canonical(against.get(key))}. Set {key} in "
                "base.set so that it is equal, or make it a factor."
            )


def _leaks(study: Study, arena: Arena, resolved: dict[str, dict[str, Scalar]]) -> Iterator[str]:
    for name, settings in resolved.items():
        for seed in study.seeds:
            splits = arena.splits(settings, seed)
            if both := splits.train & splits.held_out:
                some = ", ".join(sorted(both)[:3])
                yield (
                    f"The arm {name} trains on {len(both)} of the {len(splits.held_out)} tasks "
                    f"that it is evaluated on with seed {seed}: {some}. Use splits without a "
                    "common task."
                )
                break
        try:
            if not arena.evaluator(settings):
                yield f"The evaluator of the arm {name} is not frozen, so its scores prove nothing."
        except ConfigError as error:
            yield f"The arm {name}: {error.message}"


def _over_budget(study: Study) -> Iterator[str]:
    budget, trials = study.budget, study.trials
    if trials > budget.trials:
        searched = f"{study.search.trials} of the search + " if study.search else ""
        fewer = "search fewer candidates" if study.search else "compare fewer arms"
        yield (
            f"The study needs {trials} trials ({searched}{len(study.arms)} arms x "
            f"{len(study.seeds)} seeds + {study.inference.repeats} repeated), and budget.trials is "
            f"{budget.trials}. Raise it, or {fewer}."
        )
    hours = trials * budget.trial_seconds / 3600
    if hours > budget.compute_hours * (1 + 1e-9):
        yield (
            f"In the worst case, {trials} trials of {budget.trial_seconds:g} s take {hours:.3g} h, "
            f"and budget.compute_hours is {budget.compute_hours:g}. Raise it, or lower "
            "budget.trial_seconds."
        )
    if budget.trial_seconds > budget.wall_hours * 3600 * (1 + 1e-9):
        yield (
            f"A trial may take {budget.trial_seconds:g} s, and budget.wall_hours is "
            f"{budget.wall_hours:g}, so none could start. Raise it, or lower "
            "budget.trial_seconds."
        )
    if (disk := study.most_disk_mib) is not None and disk > budget.disk_mib * (1 + 1e-9):
        yield (
            f"In the worst case, {trials} trials of {budget.trial_disk_mib:g} MiB and "
            f"{disk - trials * (budget.trial_disk_mib or 0):.3g} MiB for the ledger and the report "
            f"take {disk:.4g} MiB of the disk, and budget.disk_mib is {budget.disk_mib:g}. Raise "
            "it, or lower budget.trial_disk_mib."
        )


def code_of(study: Study, directory: Path) -> str:
    """Return the tree hash of the user's code; "" without.

    :raises ConfigError: it is not committed.
    """
    if study.code is None:
        return ""
    path = (directory / study.code.path).resolve()
    changes = _git(path, "status", "--porcelain", "--untracked-files=all", "--", ".")
    if changes:
        some = ", ".join(line[3:] for line in changes.splitlines()[:3])
        raise ConfigError(
            f"The code in {path} has changes that are not committed: {some}. Commit them, so that "
            "the results belong to a version: git add -A && git commit"
        )
    return _git(path, "rev-parse", "HEAD:./").strip()


def _git(path: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(path), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Cannot ask git about the code in {path}: {error}") from error
    if done.returncode:
        raise ConfigError(
            f"The code in {path} is not in a Git repository with a commit: {done.stderr.strip()}"
        )
    return done.stdout


def power(study: Study, effect: float, seeds: int, sd: float) -> float:
    """Return about how probable the verdict is that fits a true effect, at the last look.

    The exact test is approximated by Student's. For an effect within ``±smallest`` the verdict is
    ``equivalent``, beyond it ``better``.
    """
    from scipy import stats

    smallest = study.outcome.smallest
    last = len(study.inference.looks) - 1
    quantile = stats.t.ppf(1 - study.alpha_of(last) / 2, seeds - 1)
    scale = math.sqrt(seeds) / sd
    if abs(effect) > smallest:
        return float(stats.nct.sf(quantile, seeds - 1, (abs(effect) - smallest) * scale))
    room = (smallest - abs(effect)) * scale
    return float(max(0.0, 2 * stats.norm.cdf(room - quantile) - 1))


def _weak(study: Study) -> Iterator[str]:
    """Yield a warning if the study can hardly show an effect of twice the smallest of interest."""
    if (sd := study.inference.sd) is None:
        return
    effect, seeds = 2 * study.outcome.smallest, study.inference.looks[-1].seeds
    if (chance := power(study, effect, seeds, sd)) < 0.5:
        enough = [n for n in range(seeds + 1, MOST_SEEDS + 1) if power(study, effect, n, sd) >= 0.8]
        way_out = (
            f"{enough[0]} seeds would show it in four of five studies"
            if enough
            else f"even {MOST_SEEDS} seeds are too few: raise outcome.smallest or reduce the noise"
        )
        yield (
            f"The power is low: an arm that is better by twice outcome.smallest would be shown to "
            f"be better with a probability of about {chance:.2f}. {way_out}."
        )
