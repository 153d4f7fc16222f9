"""Records of runs in the forms that trackers of experiments share, for metrics loggers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from ajet_core.interfaces.logger import LoggedRun
from ajet_core.protocol import Evaluation

__all__ = ["evaluation_metrics", "flat_config", "tracker_id", "wilson"]

# Of the standard normal distribution, for intervals that cover 95 %.
_Z = 1.959963984540054


def tracker_id(run: LoggedRun) -> str:
    """Return the id of a tracker's run: the run's, with its segment if that is not the first."""
    return f"{run.run_id}-{run.segment}" if run.segment else run.run_id


def flat_config(run: LoggedRun) -> dict[str, str]:
    """Return the settings of a run by dotted name, such as ``algorithm.learning_rate``.

    Values that are not text are written as JSON.
    """
    return dict(_flat("", run.config.model_dump(mode="json")))


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return an evaluation as metrics ``evaluation/CLIENT/TAG/NAME``; docs/loggers.md lists them.

    ``pass_at_1_low`` and ``pass_at_1_high`` bound pass@1 for other tasks of the same kind: Wilson's
    interval of 95 % for as many trials as there are tasks. It is at least as wide as it has to be,
    because a task counts as one trial however many episodes it has.
    """
    values: dict[str, float] = {
        "tasks": evaluation.tasks,
        "episodes": evaluation.episodes,
        "aborted": evaluation.aborted,
        "mixed": evaluation.mixed,
        **{f"pass_at_{k}": value for k, value in evaluation.pass_at.items()},
    }
    if evaluation.reward_mean is not None:
        values["reward_mean"] = evaluation.reward_mean
    if 1 in evaluation.pass_at and evaluation.tasks:
        low, high = wilson(evaluation.pass_at[1], evaluation.tasks)
        values |= {"pass_at_1_low": low, "pass_at_1_high": high}
    of = f"evaluation/{evaluation.client_id}/{evaluation.tag}"
    return {f"{of}/{name}": float(value) for name, value in values.items()}


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Return the interval of 95 % of a share: Wilson's (E. B. Wilson, 1927), within 0 to 1.

    :param share: of the trials, 0 to 1.
    :param trials: at least 1.
    """
    scale = 1 + _Z**2 / trials
    centre = (share + _Z**2 / (2 * trials)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / trials + _Z**2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)
