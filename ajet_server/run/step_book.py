"""Finished steps: store them, then report them."""

from __future__ import annotations

import logging

from ajet_core.interfaces import BatchRecord, StepRecord
from ajet_core.protocol import RunConfig, StepSummary
from ajet_server.batches.batch_findings import BatchFault
from ajet_server.run.run_parts import RunParts
from ajet_server.run.step import Stepped

_log = logging.getLogger("ajet.server")


class StepBook:
    """The finished steps of this process.

    :ivar last: the last step.
    :ivar last_at: when it ended, in Unix seconds.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._faults: frozenset[BatchFault] = frozenset()
        self._config_json = ""
        self.last: StepSummary | None = None
        self.last_at = 0.0

    async def enter(self, stepped: Stepped, record: BatchRecord, config: RunConfig) -> None:
        """Store a step that was trained with `config`; it is durable when this returns."""
        summary, parts = stepped.summary, self._parts
        metrics, now = dict(summary.metrics), parts.wall_clock()
        config_json = config.model_dump_json()
        changed = "" if config_json == self._config_json else config_json
        step = StepRecord(summary.step, record.batch_id, metrics, now, stepped.scores, changed)
        await parts.store.add_step(step)
        await parts.loggers.reach(summary.step)
        self._config_json = config_json
        self.last, self.last_at = summary, now

    def forget_after(self, step: int) -> None:
        """Forget the last step if the run has gone back to an earlier one."""
        if self.last is not None and self.last.step > step:
            self.last = None

    def tell(self, stepped: Stepped) -> None:
        """Report a step to the log, the event stream, metrics loggers and plugins."""
        summary = stepped.summary
        if stepped.faults.keys() - self._faults:
            # Log only new faults; the status shows those that persist.
            _log.warning("step %d: %s", summary.step, "; ".join(summary.findings))
        self._faults = frozenset(stepped.faults)
        self._parts.events.emit("step", summary.model_dump())
        self._parts.loggers.log_step(summary)
        self._parts.watch.notify("ajet_step_finished", summary=summary)
