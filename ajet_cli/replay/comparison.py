"""What a step changed, compared between two ways of training it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_core.errors import RequestError
from ajet_core.interfaces import CallScore, StepReport
from ajet_core.timeline import TrainCall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STATE = "optimiser.safetensors"
Logprobs = Sequence[Sequence[float]]
"""[calls][T] logprobs of sampled tokens; empty for calls that were not computed."""


def is_time(name: str) -> bool:
    """Return whether a metric measures time, which differs whenever a step is computed."""
    return "seconds" in name or "per_second" in name


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How a step that was computed again differs from its record.

    :param logprob_difference: the largest difference of any token's logprob, in nats.
    :param advantage_difference: the largest difference of any call's advantage.
    :param missing: calls that only one of the two has.
    :param metrics: recorded and new value of the metrics that differ, without times.
    """

    step: int
    logprob_difference: float
    advantage_difference: float
    missing: int
    metrics: dict[str, tuple[float, float]]

    @property
    def identical(self) -> bool:
        """Whether everything is the same to the bit."""
        differs = self.logprob_difference or self.advantage_difference or self.missing
        return not differs and not self.metrics


def reproduction(
    step: int,
    recorded: Mapping[str, CallScore],
    recorded_metrics: Mapping[str, float],
    calls: Sequence[TrainCall],
    report: StepReport,
    *,
    prepared: Mapping[str, float],
) -> Reproduction:
    """Compare a step with its record.

    :param recorded: the recorded scores by call id.
    :param recorded_metrics: all metrics of the step; those that were not computed again are
        ignored.
    :param calls: the calls of the batch as they were trained now.
    :param prepared: metrics of the batch, besides those of `report`.
    """
    missing = len(recorded.keys() ^ {call.call_id for call in calls})
    gap = credit = 0.0
    logprobs = report.logprobs or [[]] * len(calls)
    for call, now in zip(calls, logprobs, strict=True):
        if (before := recorded.get(call.call_id)) is None:
            continue
        credit = max(credit, abs(before.advantage - call.advantage))
        if len(before.logprobs) != len(now):
            missing += 1
            continue
        gap = max([gap, *(abs(a - b) for a, b in zip(before.logprobs, now, strict=True))])
    metrics = {
        name: (recorded_metrics[name], value)
        for name, value in {**report.metrics, **prepared}.items()
        # Records have no numbers that JSON lacks.
        if not is_time(name) and math.isfinite(value) and recorded_metrics.get(name, value) != value
    }
    return Reproduction(step, gap, credit, missing, metrics)


@dataclass(frozen=True, slots=True)
class EpisodeChange:
    """What a step did to an episode, as recorded and as changed.

    :param advantages: the mean over its calls.
    :param moves: the mean change of its tokens' logprobs by the step, in nats; None if its tokens
        were not computed.
    """

    episode_id: str
    task_id: str
    reward: float
    advantages: tuple[float, float]
    moves: tuple[float | None, float | None]

    @property
    def difference(self) -> float:
        """How much the two ways of training differ for this episode."""
        before, after = (move or 0.0 for move in self.moves)
        return abs(after - before)


@dataclass(frozen=True, slots=True)
class StepChange:
    """A step as recorded and with changed settings, from the same weights.

    :param metrics: the metrics of both, those of each that only one has with NaN for the other.
    :param gradient_cosine: cosine of the two gradients, as far as they entered the optimiser; None
        if the checkpoints of the trainer do not show it.
    :param update_cosine: the same of the changes of the weights.
    :param update_norms: Euclidean norms of the changes of the weights.
    :param divergence: between the policies after the step, in nats per token: the estimator k2 of
        the KL divergence on the batch's tokens; None if the trainer cannot rehearse.
    """

    step: int
    reproduced: Reproduction
    metrics: dict[str, tuple[float, float]]
    gradient_cosine: float | None
    update_cosine: float | None
    update_norms: tuple[float, float] | None
    divergence: float | None
    episodes: list[EpisodeChange]


def both_metrics(first: StepReport, second: StepReport) -> dict[str, tuple[float, float]]:
    """Return the metrics of two reports side by side, without times."""
    names = sorted(name for name in {*first.metrics, *second.metrics} if not is_time(name))
    nan = math.nan
    return {name: (first.metrics.get(name, nan), second.metrics.get(name, nan)) for name in names}


def divergence(first: Logprobs, second: Logprobs) -> float | None:
    """Return the mean of ``(log p - log q)^2 / 2`` over the tokens that both computed.

    The estimator k2 of the KL divergence (Schulman, "Approximating KL divergence"), exact to second
    order.
    """
    pairs = [
        (a - b) ** 2 / 2
        for before, after in zip(first, second, strict=True)
        if len(before) == len(after)
        for a, b in zip(before, after, strict=True)
    ]
    return math.fsum(pairs) / len(pairs) if pairs else None


def mean_change(before: Logprobs, after: Logprobs, calls: Iterable[int]) -> float | None:
    """Return the mean change of the logprobs of some calls; None if none was computed twice."""
    changes = [
        b - a
        for number in calls
        if len(before[number]) == len(after[number])
        for a, b in zip(before[number], after[number], strict=True)
    ]
    return math.fsum(changes) / len(changes) if changes else None


@dataclass(frozen=True, slots=True)
class Updates:
    """How two updates of the same weights relate; None for what the checkpoints do not show."""

    gradient_cosine: float | None = None
    update_cosine: float | None = None
    update_norms: tuple[float, float] | None = None


def compare_updates(before: Path, first: Path, second: Path, betas: tuple[float, float]) -> Updates:
    """Compare two updates by the checkpoints before and after them.

    The gradient follows from Adam's first moment, ``m' = b m + (1 - b) g``; of several optimiser
    steps, from their weighted sum.

    :param before: checkpoint of a trainer that uses `ajet_torch.checkpoint`, likewise the others.
    :param betas: Adam's decay of its first moment with each update.
    :raises RequestError: the library that reads them is not installed.
    """
    checkpoints = (before, first, second)
    changes, gradients = _Products(), _Products()
    try:
        for _, (start, one, other) in _tensors(checkpoints, "weights.safetensors"):
            changes.add(one - start, other - start)
        # How much of the moment before is left after the updates.
        left = {
            name.removesuffix("/step"): [
                beta ** int(after.sum() - start.sum())
                for beta, after in zip(betas, (one, other), strict=True)
            ]
            for name, (start, one, other) in _tensors(checkpoints, _STATE)
            if name.endswith("/step")
        }
        for name, (start, one, other) in _tensors(checkpoints, _STATE):
            if name.endswith("/exp_avg") and (shares := left.get(name.removesuffix("/exp_avg"))):
                gradients.add(one - shares[0] * start, other - shares[1] * start)
    except TypeError:
        # numpy has no bfloat16.
        return Updates()
    return Updates(gradients.cosine, changes.cosine, changes.norms)


class _Products:
    """Sums of squares and products of two vectors that come in parts."""

    def __init__(self) -> None:
        self._first = self._second = self._both = 0.0

    def add(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> None:
        self._first += float((first * first).sum())
        self._second += float((second * second).sum())
        self._both += float((first * second).sum())

    @property
    def norms(self) -> tuple[float, float] | None:
        norms = math.sqrt(self._first), math.sqrt(self._second)
        return norms if any(norms) else None

    @property
    def cosine(self) -> float | None:
        length = math.sqrt(self._first) * math.sqrt(self._second)
        return self._both / length if length else None


def _tensors(
    directories: Sequence[Path], name: str
) -> Iterator[tuple[str, list[NDArray[np.float64]]]]:
    """Yield the tensors of a file that several directories have; nothing if one lacks it."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise RequestError(
            "comparing weights needs the package safetensors, which comes with the trainers: "
            "pip install 'agentjet[torch]>=0.1'"
        ) from error
    paths = [directory / name for directory in directories]
    if not all(path.is_file() for path in paths):
        return
    with ExitStack() as opened:
        files = [opened.enter_context(safe_open(path, framework="np")) for path in paths]
        for key in sorted(files[0].keys()):
            yield key, [file.get_tensor(key).astype("float64") for file in files]
