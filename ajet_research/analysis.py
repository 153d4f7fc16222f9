"""From outcomes to findings: what a look says about each comparison. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ajet_research.events import Guarded, LookFinding
from ajet_research.inference import Estimate, Verdict, estimate, holds, paired, verdict_of
from ajet_research.search.space import candidate_arm
from ajet_research.state import StudyState
from ajet_research.study import Compare, arm_name


def analyse(state: StudyState, look: int) -> dict[str, LookFinding]:
    """Return the findings of a look (counted from 0) for comparisons without a final verdict."""
    before = {id_: one.verdict for id_, one in state.verdicts.items()}
    return {
        one.id: _finding(state, one, look)
        for one in state.registered.compare
        if before.get(one.id, "undecided") == "undecided"
    }


def final_verdicts(state: StudyState) -> dict[str, Verdict]:
    """Return the verdict of each comparison; undecided where no look was taken."""
    latest = state.verdicts
    return {
        one.id: latest[one.id].verdict if one.id in latest else "undecided"
        for one in state.registered.compare
    }


def decision(state: StudyState) -> int:
    """Return the index of the branch that applies. Registration proves that there is one."""
    verdicts = final_verdicts(state)
    return next(
        index
        for index, branch in enumerate(state.registered.decide)
        if branch.otherwise or branch.applies(verdicts)
    )


def outcomes(state: StudyState, arm: str, metric: str) -> dict[int, float]:
    """Return by seed the outcomes of an arm.

    A failed trial has the registered outcome, and the worst value of each other metric.
    """
    value = state.metrics[metric].worst
    registered = state.registered.outcome
    if metric == registered.metric and registered.failed != "worst":
        value = registered.failed
    values: dict[int, float] = {}
    for trial in state.trials.values():
        outcome = trial.outcome
        if trial.arm != arm or trial.blueprint.repeat or outcome is None:
            continue
        if not outcome.failed:
            values[trial.blueprint.seed] = outcome.metrics[metric]
        else:
            assert value is not None, "registration refuses this"
            values[trial.blueprint.seed] = value
    return values


def search_value(state: StudyState, candidate: int, rung: int) -> float | None:
    """Return the mean outcome of a candidate of a search in a rung; None without outcomes."""
    arm = candidate_arm(candidate, rung)
    values = outcomes(state, arm, state.registered.outcome.metric).values()
    return math.fsum(values) / len(values) if values else None


def kept(state: StudyState) -> list[int]:
    """Return the candidates that the present rung of a search keeps, the best first."""
    study = state.registered
    assert study.search is not None
    turn = sign(state, study.outcome.metric)
    values = {number: search_value(state, number, state.rung) for number in state.entered}
    known = {number: -turn * value for number, value in values.items() if value is not None}
    best = sorted(known, key=lambda number: (known[number], number))
    return best[: study.search.rungs[state.rung].keep]


def sign(state: StudyState, metric: str) -> float:
    """Return 1 if more of a metric is better, else -1."""
    return 1.0 if state.metrics[metric].direction == "max" else -1.0


def _finding(state: StudyState, one: Compare, look: int) -> LookFinding:
    study = state.registered
    first, count = study.inference.first_seed, study.inference.looks[look].seeds
    alpha, metric = study.alpha_of(look), study.outcome.metric
    arm, against = arm_name(one.arm), arm_name(one.against)

    def differences(of: str) -> dict[int, float]:
        ours, others = (outcomes(state, side, of) for side in (arm, against))
        both = paired(ours, others, sign=sign(state, of))
        return {seed: value for seed, value in both.items() if seed < first + count}

    pairs = differences(metric)
    seeds = list(pairs)
    missing = [seed for seed in range(first, first + count) if seed not in pairs]
    if not pairs:
        return LookFinding(
            verdict="invalid",
            reason="no pair of trials has outcomes",
            seeds=[],
            missing=missing,
            arm_mean=None,
            against_mean=None,
            gain=None,
            low=None,
            high=None,
            p=None,
            alpha=alpha,
            wins=None,
            guardrails={},
        )
    estimated = estimate(list(pairs.values()), alpha)
    guardrails = {}
    for guard in study.outcome.guardrails:
        guarded = estimate(list(differences(guard.metric).values()), alpha)
        guardrails[guard.metric] = Guarded(
            gain=guarded.gain,
            low=_finite(guarded.low),
            high=_finite(guarded.high),
            holds=holds(guarded, guard.margin),
        )
    verdict, reason = _verdict(state, (arm, against), estimated, guardrails)
    too_many = len(missing) / count > study.inference.most_missing
    if too_many and verdict != "invalid":
        last = look == len(study.inference.looks) - 1
        verdict = "invalid" if last else "undecided"
        reason = "more pairs are missing than the study allows"
    return LookFinding(
        verdict=verdict,
        reason=reason,
        seeds=seeds,
        missing=missing,
        arm_mean=_mean(outcomes(state, arm, metric), seeds),
        against_mean=_mean(outcomes(state, against, metric), seeds),
        gain=estimated.gain,
        low=_finite(estimated.low),
        high=_finite(estimated.high),
        p=estimated.p,
        alpha=alpha,
        wins=estimated.wins,
        guardrails=guardrails,
    )


def _verdict(
    state: StudyState, arms: tuple[str, str], estimated: Estimate, guardrails: Mapping[str, Guarded]
) -> tuple[Verdict, str]:
    """Return the verdict, and why it is not the one of the interval alone."""
    for arm in arms:
        if same := _same_fingerprint(state, arm):
            return "invalid", f"the seed has no effect: {same} of the arm {arm} measured the same"
    verdict = verdict_of(estimated, state.registered.outcome.smallest)
    broken = [metric for metric, guarded in guardrails.items() if not guarded.holds]
    if verdict in ("better", "equivalent") and broken:
        return "undecided", f"a guardrail is not shown to hold: {', '.join(broken)}"
    return verdict, ""


def _same_fingerprint(state: StudyState, arm: str) -> str:
    """Return two trials of different seeds that measured the same; "" if there are none."""
    seen: dict[str, str] = {}
    for id_, trial in state.trials.items():
        outcome = trial.outcome
        if trial.arm != arm or trial.blueprint.repeat or outcome is None or outcome.failed:
            continue
        if outcome.fingerprint in seen:
            return f"trials {seen[outcome.fingerprint]} and {id_}"
        seen[outcome.fingerprint] = id_
    return ""


def _mean(values: Mapping[int, float], seeds: list[int]) -> float:
    return math.fsum(values[seed] for seed in seeds) / len(seeds)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
