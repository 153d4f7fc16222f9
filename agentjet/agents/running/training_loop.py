"""Steps of the loop of `train` that sync and async clients share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentjet.agents.curriculum import Curriculum
from agentjet.agents.epochs import EpochPlan
from agentjet.client import EpisodeFailure, EpisodeResult, Resumption, RunnerReport
from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig, ServerState, ServerStatus

OnResult = Callable[[EpisodeResult[Any, Any] | EpisodeFailure], object]
Report = RunnerReport[Any, Any]

_log = logging.getLogger("ajet.agents")


def epoch_counts(epochs: int, curriculum: Curriculum | None) -> list[int]:
    """Return the numbers of epochs that are planned at once: with a curriculum one at a time."""
    return [epochs] if curriculum is None or epochs < 1 else [1] * epochs


def joined_report(reports: Sequence[Report]) -> Report:
    """Return the report of all epochs."""
    return RunnerReport(
        outcomes=[one for report in reports for one in report.outcomes],
        failures=[one for report in reports for one in report.failures],
        elapsed=sum(report.elapsed for report in reports),
    )


def total_episodes(todo: EpochPlan, left: Resumption | None) -> int:
    """Return the number of episodes to roll out."""
    if left is None:
        return len(todo.tasks) * todo.size
    return sum(lacking for _, lacking in left.remaining)


def log_what_is_left(status: ServerStatus) -> None:
    """Log that the last episodes are not trained yet if the run is paused or they fill no batch."""
    batch = status.batch
    if status.state is ServerState.PAUSED:
        _log.warning("the run is paused: full batches are trained once it is resumed")
    if batch is None or batch.open_episodes or not 0 < batch.ready < batch.needed:
        return
    unit = "episodes" if batch.full_by == "episodes" else "tasks"
    _log.warning(
        "the open batch has %d of %d %s: it is trained once %d more are rolled out",
        batch.ready,
        batch.needed,
        unit,
        batch.needed - batch.ready,
    )


def refuse_config(config: RunConfig | Mapping[str, object] | None) -> None:
    """Check that there is no configuration, which several models cannot share.

    :raises ConfigError: there is one.
    """
    if config is not None:
        raise ConfigError(
            "config= cannot be used with several models; pass one configuration per role to "
            "Swarm.sync_train_config, then call Swarm.start_engine"
        )
