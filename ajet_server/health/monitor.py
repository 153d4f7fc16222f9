"""Findings that start and end with the steps of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ajet_core.interfaces import StepRecord
from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.health.checks import CHECKS, CLEAR, Check, Reading
from ajet_server.health.past import Past, StepMetrics

_REMEMBERED = 256
"""How many steps are kept for judging; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem with the training.

    :param step: the first step that shows it.
    :param good_step: the last step with weights from before it; 0 for the initial weights.
    :param sentence: cause and way out.
    :param pauses: whether the run is to pause for it.
    :param since: Unix time in seconds at which it was detected.
    """

    kind: HealthKind
    step: int
    good_step: int
    sentence: str
    pauses: bool
    since: float


class HealthMonitor:
    """Judges a run by the metrics of its steps.

    A finding starts when the measured value reaches its limit, and ends when the value is below
    half of it, so that it does not start and end with every step.
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
        """The present findings, the most severe first."""
        return [self._found[check.kind] for check in CHECKS if check.kind in self._found]

    @property
    def good_step(self) -> int | None:
        """The last step before everything that is found or suspected; None if nothing is.

        The run may have to go back to its checkpoint, or to the newest one before it.
        """
        suspects = [
            _good_step(check, self._suspect_since[check.kind])
            for check in CHECKS
            if check.kind in self._suspect_since
        ]
        return min(suspects, default=None)

    def judge(self, step: int, metrics: Mapping[str, float], now: float) -> list[HealthFinding]:
        """Judge a batch before it is trained.

        :param metrics: of the batch.
        :return: new findings.
        """
        past = Past([*self._steps, StepMetrics.of(metrics)])
        return self._look([c for c in CHECKS if c.before], past, step, now)

    def record(self, step: int, metrics: Mapping[str, float], now: float) -> list[HealthFinding]:
        """Judge a finished step.

        :return: new findings; those about its batch are not new if the batch was judged before.
        """
        self._steps.append(StepMetrics.of(metrics))
        return self._look(CHECKS, Past([*self._steps]), step, now)

    def checks(self) -> dict[str, str]:
        """Return the state of each check: "ok", "found", "off", or why it cannot judge."""
        return {check.kind: self._standing(check) for check in CHECKS}

    def _standing(self, check: Check) -> str:
        if check.is_off(self._config):
            return "off"
        if check.kind in self._found:
            return "found"
        reading = self._readings.get(check.kind, "no step has been trained yet")
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
                finding = HealthFinding(
                    check.kind,
                    first,
                    _good_step(check, first),
                    _sentence(check, reading),
                    pauses,
                    now,
                )
                self._found[check.kind] = finding
                begun.append(finding)
        return begun


def _sentence(check: Check, reading: Reading) -> str:
    return f"{reading.cause}: {reading.way_out or check.way_out}"


def _good_step(check: Check, first: int) -> int:
    """Return the last step with unsuspected weights for a finding that starts at step `first`."""
    return max(0, first - (2 if check.of_answers else 1))
