"""The logger ``mlflow``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding
from ajet_loggers.tracking import evaluation_metrics, flat_config, tracker_id
from ajet_loggers_mlflow.names import mlflow_name
from ajet_loggers_mlflow.settings import MlflowSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_ID = "ajet.run_id"
GROUP = "ajet.group"
FINDING = "ajet.finding"
END_REASON = "ajet.end_reason"
END_MESSAGE = "ajet.end_message"
CHANGED = "ajet.changed"
STATUS = {"done": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

# Limits of MLflow, for one request and for one text.
METRICS_AT_ONCE = 1000
PARAMETERS_AT_ONCE = 100
LONGEST_TEXT = 5000


class MlflowLogger(MetricsLogger[MlflowSettings]):
    """Writes each segment of a run to one MLflow run, also if a server continues it later."""

    def __init__(self, settings: MlflowSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._last_time = 0

    def start(self, run: LoggedRun) -> None:
        """Find the MLflow run of this run, or create it."""
        client = self._connected()
        self._run_id = ""
        experiment = self._experiment(client)
        own = tracker_id(run)
        before = client.search_runs(
            [experiment],
            filter_string=f"tags.`{RUN_ID}` = '{own}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        if before:
            run_id = before[0].info.run_id
            self._continue(client, run_id, before[0].data.tags)
            known = before[0].data.params
        else:
            created = client.create_run(
                experiment,
                tags={**self.settings.tags, RUN_ID: own, GROUP: run.run_id},
                run_name=own.replace(run.run_id, self.settings.run_name or run.run_id),
            )
            run_id, known = created.info.run_id, {}
        wanted = {mlflow_name(n): v[:LONGEST_TEXT] for n, v in flat_config(run).items()}
        self._write_parameters(client, run_id, wanted, known)
        self._run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step."""
        self._write(metrics, step)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        self._write(evaluation_metrics(evaluation), evaluation.step)

    def log_finding(self, step: int, finding: Finding) -> None:
        """Write a tag; the last finding of a code counts."""
        text = f"step {step}: {finding.message}"[:LONGEST_TEXT]
        name = mlflow_name(f"{FINDING}.{finding.code}")
        self._connected().set_tag(self._run_id, name, text)

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        """Write measurements, with their time."""
        self._write(metrics, step, int(at * 1000))

    def finish(self, reason: EndReason, message: str) -> None:
        """Write why the run ended."""
        client = self._connected()
        client.set_tag(self._run_id, END_REASON, reason)
        if message:
            client.set_tag(self._run_id, END_MESSAGE, message[:LONGEST_TEXT])
        client.set_terminated(self._run_id, status=STATUS[reason])

    def close(self) -> None:
        """Do nothing: each record is written at once."""

    def _connected(self) -> MlflowClient:
        """Return the client. MLflow takes seconds to import, so it is imported here."""
        if self._client is None:
            # A training server sends no telemetry unless its operator enables it.
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            from mlflow import MlflowClient

            local = f"sqlite:///{self.context.run_dir.resolve() / 'mlflow.db'}"
            self._client = MlflowClient(tracking_uri=self.settings.tracking_uri or local)
        return self._client

    def _experiment(self, client: MlflowClient) -> str:
        name = self.settings.experiment
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        artifacts = None
        if not self.settings.tracking_uri:
            artifacts = (self.context.run_dir.resolve() / "mlflow-artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=artifacts))

    def _continue(self, client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
        client.update_run(run_id, status="RUNNING")
        for name in (END_REASON, END_MESSAGE):
            if name in tags:
                client.delete_tag(run_id, name)
        for name, value in self.settings.tags.items():
            client.set_tag(run_id, name, value)

    def _write_parameters(
        self, client: MlflowClient, run_id: str, wanted: Mapping[str, str], known: Mapping[str, str]
    ) -> None:
        """Write new parameters. MLflow keeps the first value, so later ones become tags."""
        from mlflow.entities import Param

        new = [Param(name, value) for name, value in wanted.items() if name not in known]
        for first in range(0, len(new), PARAMETERS_AT_ONCE):
            client.log_batch(run_id, params=new[first : first + PARAMETERS_AT_ONCE])
        for name, value in wanted.items():
            if known.get(name, value) != value:
                client.set_tag(run_id, f"{CHANGED}.{name}", value)

    def _write(self, values: Mapping[str, float], step: int, at: int | None = None) -> None:
        from mlflow.entities import Metric

        if at is None:
            # Of values of one step, MLflow shows the one with the latest time, then the largest.
            at = self._last_time = max(self._last_time + 1, int(time.time() * 1000))
        metrics = [Metric(mlflow_name(name), value, at, step) for name, value in values.items()]
        for first in range(0, len(metrics), METRICS_AT_ONCE):
            some = metrics[first : first + METRICS_AT_ONCE]
            self._connected().log_batch(self._run_id, metrics=some)
