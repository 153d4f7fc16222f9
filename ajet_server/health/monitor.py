"""Findings as they come and go with the steps of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ajet_core.interfaces import StepRecord
from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.health.checks import CHECKS, CLEAR, Check, Reading
from ajet_server.health.past import Past, StepMetrics

_REMEMBERED = 256
"""Steps that are judged by; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Something that is wrong with the training.

    :param step: the first step that shows it.
    :param good_step: the last step whose weights are from before it; 0 for those the run began with.
    :param sentence: cause and way out.
    :param pauses: whether the run is to pause for it.
    :param since: unix seconds at which it was found.
    """

    kind: HealthKind
    step: int
    good_step: int
    sentence: str
    pauses: bool
    since: float


class HealthMonitor:
    """Judges a run by the metrics of its steps.

    A finding begins when what was measured reaches its limit and ends when it is below half of it, so that it does
    not come and go with every step.
    """

    def __init__(self, config: FailureConfig, past: Iterable[StepRecord] = ()) -> None:
        self._config = config
        self._steps: deque[StepMetrics] = deque(maxlen=_REMEMBERED)
        self._suspect_since: dict[HealthKind, int] = {}
        self._found: dict[HealthKind, HealthFinding] = {}
        self._readings: dict[HealthKind, Reading | str] = {}
        for step in past:
            self.record(step.step, step.metrics, step.finished_at)

    @property
    def findings(self) -> list[HealthFinding]:
        """What is wrong at present, the gravest first."""
        return [self._found[check.kind] for check in CHECKS if check.kind in self._found]

    @property
    def good_step(self) -> int | None:
        """The last step from before everything that is found or suspected; None if nothing is.

        Its checkpoint, or the newest one from before it, is what the run may have to go back to.
        """
        suspects = [
            _good_step(check, self._suspect_since[check.kind])
            for check in CHECKS
            if check.kind in self._suspect_since
        ]
        return min(suspects, default=None)

    def judge(self, step: int, metrics: Mapping[str, float], now: float) -> list[HealthFinding]:
        """Judge a batch before it is trained on.

        :param metrics: of the batch.
        :return: findings that begin.
        """
        past = Past([*self._steps, StepMetrics.of(metrics)])
        return self._look([c for c in CHECKS if c.before], past, step, now)

    def record(self, step: int, metrics: Mapping[str, float], now: float) -> list[HealthFinding]:
        """Judge a finished step.

        :return: findings that begin; those of its batch have begun before if it was judged.
        """
        self._steps.append(StepMetrics.of(metrics))
        return self._look(CHECKS, Past([*self._steps]), step, now)

    def checks(self) -> dict[str, str]:
        """How each check stands: "ok", "found", "off", or why it cannot judge."""
        return {check.kind: self._standing(check) for check in CHECKS}

    def _standing(self, check: Check) -> str:
        if check.is_off(self._config):
            return "off"
        if check.kind in self._found:
            return "found"
        reading = self._readings.get(check.kind, "no step was trained yet")
        return reading if isinstance(reading, str) else "ok"

    def _look(
        self, checks: Sequence[Check], past: Past, step: int, now: float
    ) -> list[HealthFinding]:
        begun = []
        for check in checks:
            if check.is_off(self._config):
                continue
            reading = self._readings[check.kind] = check.read(past, self._config)
            if isinstance(reading, str):
                continue
            if reading.level < CLEAR:
                self._suspect_since.pop(check.kind, None)
                self._found.pop(check.kind, None)
                continue
            span = max(check.span, reading.span)
            first = self._suspect_since.setdefault(check.kind, max(1, step - span + 1))
            if (known := self._found.get(check.kind)) is not None:
                self._found[check.kind] = replace(known, sentence=_sentence(check, reading))
            elif reading.level >= 1:
                pauses = reading.pauses and check.kind in self._config.pause_on
                found = HealthFinding(
                    check.kind,
                    first,
                    _good_step(check, first),
                    _sentence(check, reading),
                    pauses,
                    now,
                )
                self._found[check.kind] = found
                begun.append(found)
        return begun


def _sentence(check: Check, reading: Reading) -> str:
    return f"{reading.cause}: {check.way_out}"


def _good_step(check: Check, first: int) -> int:
    """The last step whose weights a finding that shows from step `first` on leaves unsuspected."""
    return max(0, first - (2 if check.of_answers else 1))
