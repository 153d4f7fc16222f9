"""The logger ``mlflow``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation
from ajet_mlflow.names import mlflow_name
from ajet_mlflow.settings import MlflowLoggerSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

RUN_ID = "ajet.run_id"
END_REASON = "ajet.end_reason"
END_MESSAGE = "ajet.end_message"
CHANGED = "ajet.changed"
STATUS = {"done": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

# Limits of MLflow, for one request and for one text.
METRICS_AT_ONCE = 1000
PARAMETERS_AT_ONCE = 100
LONGEST_TEXT = 5000


class MlflowLogger(MetricsLogger[MlflowLoggerSettings]):
    """Writes each run of agentjet to one MLflow run, also if a server continues it later."""

    def __init__(self, settings: MlflowLoggerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._last_time = 0

    def start(self, run: LoggedRun) -> None:
        """Find the MLflow run of this run, or create it."""
        client = self._connected()
        self._run_id = ""
        experiment = self._experiment(client)
        found = client.search_runs(
            [experiment],
            filter_string=f"tags.`{RUN_ID}` = '{run.run_id}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        if found:
            run_id = found[0].info.run_id
            self._continue(client, run_id, found[0].data.tags)
            known = found[0].data.params
        else:
            created = client.create_run(
                experiment,
                tags={**self.settings.tags, RUN_ID: run.run_id},
                run_name=self.settings.run_name or run.run_id,
            )
            run_id, known = created.info.run_id, {}
        self._write_parameters(client, run_id, parameters(run), known)
        self._run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step."""
        self._write({mlflow_name(name): value for name, value in metrics.items()}, step)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores of a task set; the names of the metrics begin with ``evaluation/``."""
        values: dict[str, float] = {
            "tasks": evaluation.tasks,
            "episodes": evaluation.episodes,
            "aborted": evaluation.aborted,
            "mixed": evaluation.mixed,
            **{f"pass_at_{k}": value for k, value in evaluation.pass_at.items()},
        }
        if evaluation.reward_mean is not None:
            values["reward_mean"] = evaluation.reward_mean
        of = ("evaluation", evaluation.client_id, evaluation.tag)
        self._write({mlflow_name(*of, name): v for name, v in values.items()}, evaluation.step)

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
            # A training server reports nothing to others, unless its operator says so.
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            from mlflow import MlflowClient

            uri = self.settings.tracking_uri
            if not uri:
                uri = f"sqlite:///{self.context.run_dir.resolve() / 'mlflow.db'}"
            self._client = MlflowClient(tracking_uri=uri)
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
        self,
        client: MlflowClient,
        run_id: str,
        wanted: Mapping[str, str],
        known: Mapping[str, str],
    ) -> None:
        """Write new parameters. MLflow keeps the first value, so later ones become tags."""
        from mlflow.entities import Param

        new = [Param(name, value) for name, value in wanted.items() if name not in known]
        for some in batches(new, PARAMETERS_AT_ONCE):
            client.log_batch(run_id, params=some)
        for name, value in wanted.items():
            if known.get(name, value) != value:
                client.set_tag(run_id, f"{CHANGED}.{name}", value)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        # Of values of one step, MLflow shows the one with the latest time, then the largest one.
        self._last_time = max(self._last_time + 1, int(time.time() * 1000))
        metrics = [Metric(name, v, self._last_time, step) for name, v in values.items()]
        for some in batches(metrics, METRICS_AT_ONCE):
            self._connected().log_batch(self._run_id, metrics=some)


def parameters(run: LoggedRun) -> dict[str, str]:
    """Return the settings of a run by their names, such as ``algorithm.learning_rate``."""
    return {
        mlflow_name(name): value[:LONGEST_TEXT]
        for name, value in _flat("", run.config.model_dump(mode="json"))
    }


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, at most ``size`` at a time."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
