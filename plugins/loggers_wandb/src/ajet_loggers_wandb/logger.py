"""The logger ``wandb``."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding
from ajet_loggers.tracking import evaluation_metrics, tracker_id
from ajet_loggers_wandb.settings import WandbSettings

# W&B numbers rows, and refuses a row that is not after the last one. The rows of a step begin at a
# multiple of this number, so those of a run that continues are later, whatever was written before.
_ROWS = 1000


class WandbLogger(MetricsLogger[WandbSettings]):
    """Writes a run of W&B for each segment of a run; they are in one group."""

    def __init__(self, settings: WandbSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._run: wandb.Run | None = None
        self._row = 0

    def start(self, run: LoggedRun) -> None:
        """Begin a run of W&B, or continue it."""
        self._finish(0)
        wanted, own = self.settings, tracker_id(run)
        started = wandb.init(
            project=wanted.project,
            entity=wanted.entity or None,
            id=own,
            name=own.replace(run.run_id, wanted.name) if wanted.name else own,
            group=run.run_id,
            tags=wanted.tags,
            config=run.config.model_dump(mode="json"),
            # A setting may change when a run continues.
            allow_val_change=True,
            dir=self.context.run_dir,
            mode=wanted.mode,
            resume="allow" if wanted.mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                # For the answer to a question after the key, if the server runs in a terminal.
                login_timeout=1.0,
                disable_git=True,
                disable_code=True,
                # The command line of a server is private.
                x_disable_meta=True,
                # agentjet measures the machine for all loggers.
                x_disable_stats=True,
            ),
        )
        started.define_metric("*", step_metric="step")
        self._run, self._row = started, run.resumed_step * _ROWS

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step."""
        self._log(step, metrics)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        self._log(evaluation.step, evaluation_metrics(evaluation))

    def log_finding(self, step: int, finding: Finding) -> None:
        """Send an alert."""
        self._started.alert(
            title=finding.code, text=f"step {step}: {finding.message}", level="WARN"
        )

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        """Write measurements."""
        self._log(step, {**metrics, "system/time": at})

    def finish(self, reason: EndReason, message: str) -> None:
        """End the run of W&B."""
        self._started.summary.update({"ajet_end": reason, "ajet_message": message})
        self._finish(int(reason == "failed"))

    def close(self) -> None:
        """End a run that was not finished; online, this waits until everything is sent."""
        self._finish(0)

    @property
    def _started(self) -> wandb.Run:
        if self._run is None:
            raise RuntimeError("the run of W&B has ended")
        return self._run

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._row = max(self._row + 1, step * _ROWS)
        self._started.log({**metrics, "step": step}, step=self._row)

    def _finish(self, exit_code: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=exit_code)
