"""Findings about a run's training: report when they start and end, and show the present ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from ajet_core.interfaces import BatchRecord, StepRecord
from ajet_core.protocol import FailureConfig, Finding, HealthKind, StepSummary
from ajet_server.batches.batch_findings import BatchFault
from ajet_server.batches.training_data import TrainingData
from ajet_server.health import ClientMonitors, HealthFinding, HealthMonitor
from ajet_server.run.run_parts import RunParts
from ajet_server.store.checkpoints import CheckpointFolder

_log = logging.getLogger("ajet.server")

# A finding is made at most this many steps after the problem started to show.
_LATE = 5
# Findings about one batch that those about several batches in a row repeat.
_COVERED: Mapping[BatchFault, HealthKind] = {"no_signal": "zero_signal", "flat": "equal_rewards"}
_NO_CHECKPOINT = "There is no good checkpoint, only the model that the run started with"


class BatchHeld(Exception):  # noqa: N818 - a configured stop, not an error
    """A batch must not be trained until an operator resumes the run.

    :ivar reason: cause and way out.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RunHealth:
    """Judges the batches and steps of a run.

    :param checkpoints: the checkpoints that the run can go back to.
    """

    def __init__(
        self, config: FailureConfig, parts: RunParts, checkpoints: CheckpointFolder
    ) -> None:
        self._config = config
        self._events, self._loggers, self._clock = parts.events, parts.loggers, parts.wall_clock
        self._checkpoints = checkpoints
        self._monitor = HealthMonitor(config)
        self._clients = ClientMonitors(config)
        # The kinds of findings for which the run is to be paused, or was.
        self._grave: set[HealthKind] = set()
        self._accepted: set[str] = set()

    @property
    def findings(self) -> list[Finding]:
        """The present findings, the most severe first."""
        return [self._told(finding) for finding in self._monitor.findings]

    @property
    def checks(self) -> dict[str, str]:
        """The state of each check, as `HealthMonitor.checks` returns it."""
        return self._monitor.checks()

    def trusted_step(self, step: int) -> int:
        """Return the last step with weights from before anything suspected or not yet detectable.

        :param step: the newest step.
        """
        good = self._monitor.good_step
        return step - _LATE if good is None else good

    def begin(self, past: Iterable[StepRecord]) -> None:
        """Restore the findings from the steps of the present weights."""
        before = self._monitor.findings
        self._monitor = HealthMonitor(self._config, past)
        self._clients.forget()
        self._grave = {finding.kind for finding in self._monitor.findings if finding.pauses}
        self._tell(before)

    def accept(self, batch_ids: Iterable[str]) -> None:
        """Do not hold these batches: they were trained before, or an operator was informed."""
        self._accepted.update(batch_ids)

    def judge(self, record: BatchRecord, data: TrainingData) -> None:
        """Judge a batch before it is trained.

        :raises BatchHeld: the batch is to be held.
        """
        if record.batch_id in self._accepted:
            return
        before = self._monitor.findings
        self._monitor.judge(record.step, data.metrics(), self._clock())
        self._clients.judge(record.step, data.clients, self._clock())
        self._tell(before)
        if grave := self._newly_grave(record.step):
            raise BatchHeld(
                f"the batch of step {record.step} was not trained: {self._words(grave)}. Run "
                "`ajet resume` to train this batch and continue"
            )

    def stepped(
        self,
        summary: StepSummary,
        clients: Mapping[str, Mapping[str, float]],
        faults: Mapping[BatchFault, str],
    ) -> tuple[StepSummary, str]:
        """Judge a finished step.

        :param clients: as `Stepped.clients`.
        :param faults: as `Stepped.faults`.
        :return: its summary with the findings, and why the run is to pause, "" if it is not.
        """
        before = self._monitor.findings
        self._monitor.record(summary.step, summary.metrics, self._clock())
        self._clients.record(summary.step, clients, self._clock())
        self._tell(before)
        present = {finding.kind: finding.sentence for finding in self._monitor.findings}
        covered = {faults.get(fault) for fault, kind in _COVERED.items() if kind in present}
        others = [text for text in summary.findings if text not in covered]
        summary = summary.model_copy(update={"findings": [*others, *present.values()]})
        if not (grave := self._newly_grave(summary.step)):
            return summary, ""
        reason = f"after step {summary.step}: {self._words(grave)}"
        return summary, f"{reason}. Run `ajet resume` to continue from the current weights"

    def _newly_grave(self, step: int) -> list[HealthFinding]:
        """Return findings to pause for that did not require a pause at the last call."""
        grave = {
            finding.kind: finding
            for finding in self._monitor.findings
            if finding.pauses and self._clients.shared(finding.kind, step)
        }
        before, self._grave = self._grave, set(grave)
        return [finding for kind, finding in grave.items() if kind not in before]

    def _words(self, findings: Sequence[HealthFinding]) -> str:
        good = min(self._good_checkpoint(finding) for finding in findings)
        causes = "; ".join(finding.sentence for finding in findings)
        last = f"The last good checkpoint is that of step {good}" if good else _NO_CHECKPOINT
        return f"{causes}. {last}: run `ajet resume --from-step {good}` to return to it"

    def _tell(self, before: Sequence[HealthFinding]) -> None:
        """Report the findings that started or ended since `before`."""
        now = {finding.kind: finding for finding in self._monitor.findings}
        was = {finding.kind: finding for finding in before}
        for kind in now.keys() - was.keys():
            _log.warning("step %d: %s", now[kind].step, now[kind].sentence)
            self._emit("begun", now[kind])
            self._loggers.log_finding(self._told(now[kind]))
        for kind in was.keys() - now.keys():
            self._emit("ended", was[kind])

    def _emit(self, what: str, finding: HealthFinding) -> None:
        self._events.emit("finding", {"what": what, **self._told(finding).model_dump()})

    def _told(self, finding: HealthFinding) -> Finding:
        return Finding(
            code=finding.kind,
            message=finding.sentence,
            seconds=round(max(0.0, self._clock() - finding.since), 3),
            stuck=False,
            since_step=finding.step,
            good_step=self._good_checkpoint(finding),
        )

    def _good_checkpoint(self, finding: HealthFinding) -> int:
        kept = (step for step in self._checkpoints.steps() if step <= finding.good_step)
        return max(kept, default=0)
