"""The findings that a run had, from its steps and from its log."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from ajet_core.interfaces import StepRecord
from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.health import HealthMonitor

_MOST = 100
_MOST_BYTES = 16 * 2**20
_TRAINING = frozenset(get_args(HealthKind))


@dataclass(frozen=True, slots=True)
class PastFinding:
    """A finding of a run.

    :param sentence: cause and way out, as they were last.
    :param first: the first step that shows it.
    :param last: the last step of which it was a finding; None if it still was after the last step.
    :param good_step: the last step with weights from before it; None if it is not about training.
    :param times: how often it began.
    """

    code: str
    sentence: str
    first: int
    last: int | None
    good_step: int | None = None
    times: int = 1


class FindingReplay:
    """Judges the steps of a run again, as its server did."""

    def __init__(self, config: FailureConfig) -> None:
        self._monitor = HealthMonitor(config)
        self._open: dict[str, PastFinding] = {}
        # The last ones, if there are very many.
        self._ended: deque[PastFinding] = deque(maxlen=_MOST)
        self._step = 0

    def add(self, step: StepRecord) -> None:
        """Judge the next step."""
        self._monitor.record(step.step, step.metrics, step.finished_at)
        before, self._open = self._open, {}
        for each in self._monitor.findings:
            now = PastFinding(each.kind, each.sentence, each.step, None, each.good_step)
            known = before.pop(each.kind, None)
            if known is not None and known.first != now.first:
                self._ended.append(replace(known, last=self._step))
            self._open[each.kind] = now
        self._ended.extend(replace(one, last=self._step) for one in before.values())
        self._step = step.step

    def findings(self) -> list[PastFinding]:
        """Return those that hold after the last step, then those that have ended, by step."""
        ended = sorted(self._ended, key=lambda each: (each.first, each.code))
        return [*self._open.values(), *ended]

    def checks(self) -> dict[str, str]:
        """Return the state of each check after the last step."""
        return self._monitor.checks()


def logged_findings(path: Path, *, sentences: bool = True) -> list[PastFinding]:
    """Return what `findings.jsonl` has besides findings about training, by code.

    Lines that cannot be read are left out; of a very long file, only the last part is read.

    :param sentences: whether to keep what they say, which may quote agents.
    """
    by_code: dict[str, PastFinding] = {}
    for line in _lines(path):
        try:
            record = json.loads(line)
            code, step = str(record["code"]), int(record["step"])
            sentence = str(record["message"]) if sentences else ""
        except (ValueError, KeyError, TypeError):
            continue
        if code in _TRAINING or (code not in by_code and len(by_code) == _MOST):
            continue
        before = by_code.get(code)
        by_code[code] = PastFinding(
            code,
            sentence,
            before.first if before else step,
            step,
            times=before.times + 1 if before else 1,
        )
    return list(by_code.values())


def _lines(path: Path) -> Iterable[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_BYTES))
            if size > _MOST_BYTES:
                file.readline()
            yield from file
    except OSError:
        return
