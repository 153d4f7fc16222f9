"""Searches in planted worlds: where the best candidate is luck, and where a hill is to be climbed.

The verdicts "better" and "worse" are false in worlds without a better place.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from ajet_research.analysis import final_verdicts, search_value
from ajet_research.arenas import load_arena
from ajet_research.planning import rung_trials
from ajet_research.runners import InlineRunner
from ajet_research.search.sampling import check_sampler
from ajet_research.state import StudyState
from ajet_research.study import Study
from ajet_research.suites.planted import lead_in_memory, upper_bound

_MOST_RATE, _MOST_BOUND, _LEAST_RIGHT = 0.05, 0.075, 0.8
_SAMPLERS = ("random", "tpe")


def search_study(world: str, sampler: str, *, seed: int = 0) -> Study:
    """Return a study that searches the place of a planted world with the best score."""
    axis = {"low": -1.0, "high": 1.0}
    return Study.model_validate(
        {
            "schema": 1,
            "topic": {"question": f"Is there a better place in the world {world}?"},
            "base": {"arena": "synthetic", "set": {"world": world, "steps": 1}},
            "search": {
                "parameters": {"x": {"path": "x", **axis}, "y": {"path": "y", **axis}},
                "sampler": sampler,
                "candidates": 24,
                "batch": 4,
                "seed": seed,
                "first_seed": 101,
                "rungs": [{"seeds": 1, "keep": 4}, {"seeds": 3}],
                "set": {"split": "tuning"},
            },
            "outcome": {"metric": "score", "smallest": 0.2},
            "inference": {
                "looks": [{"seeds": 8, "alpha": 0.0125}, {"seeds": 12, "alpha": 0.0375}],
                "repeats": 0,
            },
            "compare": [
                {
                    "id": "chosen-vs-baseline",
                    "arm": {"search": "chosen"},
                    "against": {"search": "baseline"},
                }
            ],
            "decide": [{"otherwise": True, "conclude": "See the verdicts."}],
            "budget": {"trials": 60, "trial_seconds": 60, "compute_hours": 100},
        }
    )


def run_search(*, seed: int, size: int = 200) -> dict[str, Any]:
    """Measure false claims in `size` worlds without a better place, and finds in half as many."""
    began = time.monotonic()
    verdicts: dict[str, Counter[str]] = {"null": Counter(), "bait": Counter(), "hill": Counter()}
    best_of_search = Counter[str]()
    shrunk: list[float] = []
    worlds = [("bait" if index % 4 == 3 else "null", index) for index in range(size)]
    worlds += [("hill", index) for index in range(size // 2)]
    for family, index in worlds:
        study = search_study(
            f"{family}:{seed * 1_000_000 + index}", _SAMPLERS[index % 2], seed=index
        )
        assert study.search is not None
        check_sampler(study.search)
        state = lead_in_memory(study)
        verdicts[family][final_verdicts(state)["chosen-vs-baseline"]] += 1
        gain = _gain_in_search(state)
        best_of_search[family] += gain > study.outcome.smallest
        finding = state.verdicts["chosen-vs-baseline"]
        if family == "hill" and finding.gain is not None:
            shrunk.append(gain - finding.gain)
    false = sum(verdicts[family][one] for family in ("null", "bait") for one in ("better", "worse"))
    bound = upper_bound(false, size)
    right = verdicts["hill"]["better"] / (size // 2)
    return {
        "suite": "search",
        "studies": len(worlds),
        "false_claims": false,
        "rate": round(false / size, 4),
        "upper95": round(bound, 4),
        "right": round(right, 4),
        "verdicts": {family: dict(sorted(counts.items())) for family, counts in verdicts.items()},
        "best_of_search": {
            "false": round((best_of_search["null"] + best_of_search["bait"]) / size, 4),
            "overstated_by": round(sum(shrunk) / len(shrunk), 3),
        },
        "seconds": round(time.monotonic() - began, 1),
        "passed": false / size <= _MOST_RATE and bound <= _MOST_BOUND and right >= _LEAST_RIGHT,
    }


def _gain_in_search(state: StudyState) -> float:
    """Return by how much the best candidate beats the baseline on the seeds of the last rung."""
    study, runner = state.registered, InlineRunner()
    assert study.search is not None
    last = len(study.search.rungs) - 1
    best = search_value(state, state.entered[0], last) if state.entered else None
    if best is None:
        return 0.0
    # The parameters of the baseline have the arena's defaults.
    bare = dict.fromkeys(study.search.parameters, 0.0)
    trials, _ = rung_trials(study, load_arena(study.base.arena), last, {0: bare}, state.code)
    worst = state.metrics[study.outcome.metric].worst
    values = []
    for blueprint in trials.values():
        evidence = runner.poll(blueprint, 1).evidence
        assert evidence is not None
        assert worst is not None
        values.append(evidence.metrics.get(study.outcome.metric, worst))
    return best - sum(values) / len(values)
