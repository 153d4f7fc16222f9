"""Studies in planted worlds, led as always but for their files, and the rules of others beside.

A claim is false if a comparison of two equal arms is called better or worse. The other rules see
the same outcomes: all that the study would have at its last look.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ajet_research.analysis import final_verdicts
from ajet_research.arenas.worlds import METHODS
from ajet_research.leader import StudyLeader, registered_event
from ajet_research.ledger import StudyLedger
from ajet_research.registration import register
from ajet_research.runners import InlineRunner
from ajet_research.state import StudyState
from ajet_research.study import Study, arm_name

_ARMS = [2] * 8 + [3] * 4 + [4] * 3 + [6] * 2 + [10] * 2 + [20]
_MOST_RATE, _MOST_BOUND = 0.05, 0.075


def planted_study(
    world: str,
    *,
    arms: int = 2,
    looks: Sequence[tuple[int, float]] = ((8, 0.0125), (12, 0.0375)),
    smallest: float = 0.2,
    repeats: int = 0,
) -> Study:
    """Return a study that compares methods of a planted world with method ``a``."""
    methods = METHODS[:arms]
    return Study.model_validate(
        {
            "schema": 1,
            "topic": {"question": f"Which method differs from a in the world {world}?"},
            "base": {"arena": "synthetic", "set": {"world": world, "steps": 1}},
            "factors": {"method": {"path": "method", "levels": list(methods)}},
            "outcome": {"metric": "score", "smallest": smallest},
            "inference": {
                "looks": [{"seeds": seeds, "alpha": alpha} for seeds, alpha in looks],
                "repeats": repeats,
            },
            "compare": [
                {"id": f"{method}-vs-a", "arm": {"method": method}, "against": {"method": "a"}}
                for method in methods[1:]
            ],
            "decide": [{"otherwise": True, "conclude": "See the verdicts."}],
            "budget": {"trials": 1000, "trial_seconds": 60, "compute_hours": 100},
        }
    )


def lead_in_memory(study: Study) -> StudyState:
    """Lead a study to its decision, with all of its rows and none of its files."""
    ledger = StudyLedger(None)
    try:
        event = registered_event(register(study, Path()))
        ledger.append(event, time="2026-01-01T00:00:00+00:00", elapsed=0.0)
        return StudyLeader(ledger, InlineRunner(), None, parallel=1000).lead()
    finally:
        ledger.close()


def run_null(*, seed: int, size: int = 500) -> dict[str, Any]:
    """Measure how often a study of equal arms makes any false claim."""
    began = time.monotonic()
    false = 0
    peers: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    for index in range(size):
        rng = np.random.default_rng([seed, index])
        arms = int(rng.choice(_ARMS))
        looks = ((8, 0.0125), (12, 0.0375)) if arms == 2 else ((11, 0.025), (14, 0.025))
        study = planted_study(f"null:{seed * 1_000_000 + index}", arms=arms, looks=looks)
        state = lead_in_memory(study)
        claims = final_verdicts(state)
        verdicts.update(claims.values())
        false += any(verdict in ("better", "worse") for verdict in claims.values())
        table = outcome_table(state)
        for name, rule in PEERS.items():
            peers[name] += rule(table)
    bound = upper_bound(false, size)
    return {
        "suite": "null",
        "studies": size,
        "false_claims": false,
        "rate": round(false / size, 4),
        "upper95": round(bound, 4),
        "verdicts": dict(sorted(verdicts.items())),
        "peers": {name: round(peers[name] / size, 4) for name in PEERS},
        "seconds": round(time.monotonic() - began, 1),
        "passed": false / size <= _MOST_RATE and bound <= _MOST_BOUND,
    }


def run_effects(*, seed: int, size: int = 100) -> dict[str, Any]:
    """Measure how often studies find planted effects, and that they overlook trivial ones."""
    began = time.monotonic()
    # By family of worlds: the smallest effect of interest, and the least share of right answers.
    families = {"large": (0.2, 0.95), "one": (0.2, 0.80), "small": (1.0, 1.0)}
    right: Counter[str] = Counter()
    results: dict[str, dict[str, int]] = {}
    for family, (smallest, _) in families.items():
        verdicts: Counter[str] = Counter()
        for index in range(size):
            world = f"{family}:{seed * 1_000_000 + index}"
            study = planted_study(world, looks=((8, 0.0125), (18, 0.0375)), smallest=smallest)
            verdicts.update(final_verdicts(lead_in_memory(study)).values())
        if family == "small":
            right[family] = verdicts["equivalent"] + verdicts["undecided"]
        else:
            right[family] = verdicts["better"]
        results[family] = dict(sorted(verdicts.items()))
    rates = {family: round(right[family] / size, 4) for family in families}
    return {
        "suite": "effects",
        "studies": size * len(families),
        "right": rates,
        "verdicts": results,
        "seconds": round(time.monotonic() - began, 1),
        "passed": all(rates[family] >= least for family, (_, least) in families.items()),
    }


def upper_bound(count: int, of: int) -> float:
    """Return the upper end of the 95 % Clopper-Pearson interval of a rate."""
    from scipy import stats

    return float(stats.binomtest(count, of).proportion_ci(0.95, method="exact").high)


def outcome_table(state: StudyState) -> np.ndarray:
    """Return the outcomes of all arms and seeds, shape ``[arms, seeds]``; NaN where trials fail.

    Trials that the study did not need are run for it. The first arm is the baseline.
    """
    study, runner = state.registered, InlineRunner()
    names = [arm_name(arm) for arm in study.arms]
    table = np.full((len(names), len(study.seeds)), np.nan)
    for trial in state.trials.values():
        evidence = trial.outcome or runner.poll(trial.blueprint, 1).evidence
        if evidence is not None and not evidence.failed:
            column = trial.blueprint.seed - study.seeds.start
            table[names.index(trial.arm), column] = evidence.metrics["score"]
    return table


def _argmax(table: np.ndarray) -> bool:
    """One run each, the best is the winner; wrong if it is not the baseline."""
    first = np.where(np.isnan(table[:, 0]), -np.inf, table[:, 0])
    return bool(first.argmax() != 0)


def _keep_if_better(table: np.ndarray) -> bool:
    """Twenty proposals, one run each; each that beats the best so far is kept."""
    runs = table[1:].ravel()
    return bool(np.nanmax(runs[:20], initial=-np.inf) > table[0, 0])


def _three_seeds(table: np.ndarray) -> bool:
    """Mean of three seeds, with bars of one standard deviation that do not touch."""
    base = _present(table[0, :3])
    for row in table[1:, :3]:
        arm = _present(row)
        if min(len(arm), len(base)) < 2:
            continue
        if abs(arm.mean() - base.mean()) > arm.std(ddof=1) + base.std(ddof=1):
            return True
    return False


def _peeking(table: np.ndarray) -> bool:
    """A paired t-test after each seed from the third on, until one is significant."""
    from scipy import special

    for row in table[1:]:
        values = _present(row - table[0])
        for count in range(3, len(values) + 1):
            some = values[:count]
            if spread := some.std(ddof=1):
                t = abs(some.mean()) / spread * count**0.5
                if 2 * special.stdtr(count - 1, -t) < 0.05:
                    return True
    return False


def _present(values: np.ndarray) -> np.ndarray:
    """Leave failed trials out, as most rules do."""
    present: np.ndarray = values[~np.isnan(values)]
    return present


PEERS: dict[str, Callable[[np.ndarray], bool]] = {
    "argmax": _argmax,
    "keep_if_better": _keep_if_better,
    "three_seeds": _three_seeds,
    "peeking_t_test": _peeking,
}
"""The decision rules that other systems use. Each returns whether it claims a difference."""
