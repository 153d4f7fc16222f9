"""The logger passes the suite of agentjet, and continues the runs that MLflow has."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ajet_loggers_mlflow.logger import MlflowLogger
from ajet_loggers_mlflow.names import mlflow_name
from ajet_loggers_mlflow.settings import MlflowSettings
from mlflow import MlflowClient
from mlflow.entities import Run
from pydantic import ValidationError

from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding, RunConfig
from ajet_testing.suites.logger_suite import EVALUATION, STEPS, SYSTEM, LoggerSuite


def client_of(context: WorkerContext) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{context.run_dir / 'mlflow.db'}")


def runs_of(context: WorkerContext, experiment: str = "agentjet") -> list[Run]:
    if not (context.run_dir / "mlflow.db").exists():
        return []
    client = client_of(context)
    known = client.get_experiment_by_name(experiment)
    if known is None:
        return []
    return list(client.search_runs([known.experiment_id], order_by=["attributes.start_time ASC"]))


class TestMlflowLogger(LoggerSuite):
    @pytest.fixture(autouse=True)
    def database(self, empty_database: Path) -> None:
        self.empty = empty_database

    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        file = context.run_dir / "mlflow.db"
        if not file.exists():
            shutil.copy(self.empty, file)
        return MlflowLogger(MlflowSettings(), context)

    def read_steps(self, context: WorkerContext) -> Sequence[tuple[int, Mapping[str, float]]]:
        names = {mlflow_name(name): name for _, metrics in STEPS for name in metrics}
        written: dict[tuple[int, int], dict[str, float]] = {}
        client = client_of(context)
        for run in runs_of(context):
            for key in run.data.metrics:
                if key in names:
                    for point in client.get_metric_history(run.info.run_id, key):
                        record = written.setdefault((point.timestamp, point.step), {})
                        record[names[key]] = point.value
        return [(step, metrics) for (_, step), metrics in sorted(written.items())]

    def read_evaluations(self, context: WorkerContext) -> Sequence[tuple[str, int, float | None]]:
        of = ("evaluation", EVALUATION.client_id, EVALUATION.tag)
        client = client_of(context)
        read: list[tuple[int, tuple[str, int, float | None]]] = []
        for run in runs_of(context):
            rewards = {
                (point.timestamp, point.step): point.value
                for point in client.get_metric_history(
                    run.info.run_id, mlflow_name(*of, "reward_mean")
                )
            }
            for point in client.get_metric_history(run.info.run_id, mlflow_name(*of, "episodes")):
                reward = rewards.get((point.timestamp, point.step))
                read.append((point.timestamp, (EVALUATION.tag, point.step, reward)))
        return [evaluation for _, evaluation in sorted(read, key=lambda one: one[0])]


@pytest.fixture
def context(tmp_path: Path, empty_database: Path) -> WorkerContext:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return WorkerContext(tmp_path)


def logger_of(context: WorkerContext, **settings: object) -> MlflowLogger:
    return MlflowLogger(MlflowSettings.model_validate(settings), context)


def run_of(
    run_id: str = "r1", resumed_step: int = 0, segment: int = 0, **config: object
) -> LoggedRun:
    wanted = RunConfig.model_validate({"model": {"path": "/m"}, **config})
    return LoggedRun(run_id, wanted, resumed_step, segment)


def test_a_run_that_was_killed_continues_its_mlflow_run(context: WorkerContext) -> None:
    killed = logger_of(context)
    killed.start(run_of())
    killed.log(1, {"loss": 2.0})
    again = logger_of(context)
    again.start(run_of(resumed_step=1))
    again.log(2, {"loss": 1.0})
    (run,) = runs_of(context)
    assert run.info.status == "RUNNING"
    history = client_of(context).get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.0)]


def test_a_segment_is_another_mlflow_run_without_repeated_steps(context: WorkerContext) -> None:
    logger = logger_of(context, run_name="first")
    logger.start(run_of())
    for step in (1, 2):
        logger.log(step, {"loss": float(step)})
    logger.finish("interrupted", "")
    logger.start(run_of(resumed_step=1, segment=1))
    logger.log(2, {"loss": 20.0})
    again = logger_of(context)
    again.start(run_of(resumed_step=2, segment=1))
    again.log(3, {"loss": 30.0})
    first, second = runs_of(context)
    histories = [
        [(p.step, p.value) for p in client_of(context).get_metric_history(r.info.run_id, "loss")]
        for r in (first, second)
    ]
    assert histories == [[(1, 1.0), (2, 2.0)], [(2, 20.0), (3, 30.0)]]
    assert [run.info.run_name for run in (first, second)] == ["first", "first-1"]
    assert {run.data.tags["ajet.group"] for run in (first, second)} == {"r1"}


def test_findings_are_tags_and_measurements_have_their_time(context: WorkerContext) -> None:
    logger = logger_of(context)
    logger.start(run_of())
    message = "<b>grew</b> " + "x" * 10_000
    logger.log_finding(3, Finding(code="kl", message=message, seconds=0.0, stuck=False))
    for at in (1000.5, 1010.5):
        logger.log_system(at, 3, SYSTEM)
    (run,) = runs_of(context)
    assert run.data.tags["ajet.finding.kl"].startswith("step 3: <b>grew</b> x")
    history = client_of(context).get_metric_history(run.info.run_id, "system/cpu_percent")
    points = [(point.timestamp, point.step, point.value) for point in history]
    assert points == [(1_000_500, 3, 12.5), (1_010_500, 3, 12.5)]


def test_evaluations_have_intervals(context: WorkerContext) -> None:
    logger = logger_of(context)
    logger.start(run_of())
    logger.log_evaluation(EVALUATION.model_copy(update={"tag": "held-out"}))
    (run,) = runs_of(context)
    of = f"evaluation/{EVALUATION.client_id}/held-out"
    low, high = (run.data.metrics[f"{of}/pass_at_1_{end}"] for end in ("low", "high"))
    assert low < run.data.metrics[f"{of}/pass_at_1"] == 0.5 < high


def test_a_run_that_was_interrupted_is_running_again(context: WorkerContext) -> None:
    first = logger_of(context)
    first.start(run_of())
    first.finish("interrupted", "")
    (run,) = runs_of(context)
    assert (run.info.status, run.data.tags["ajet.end_reason"]) == ("KILLED", "interrupted")
    logger_of(context).start(run_of())
    (run,) = runs_of(context)
    assert run.info.status == "RUNNING"
    assert "ajet.end_reason" not in run.data.tags


def test_another_run_is_another_mlflow_run(context: WorkerContext) -> None:
    logger = logger_of(context)
    logger.start(run_of("r1"))
    logger.finish("done", "")
    logger.start(run_of("r2"))
    assert [run.info.run_name for run in runs_of(context)] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("done", "FINISHED"), ("stopped", "FINISHED"), ("failed", "FAILED")],
)
def test_a_run_ends_with_its_reason(context: WorkerContext, reason: str, status: str) -> None:
    logger = logger_of(context)
    logger.start(run_of())
    logger.finish(reason, "e" * 100_000 if reason == "failed" else "")  # type: ignore[arg-type]
    (run,) = runs_of(context)
    assert (run.info.status, run.data.tags["ajet.end_reason"]) == (status, reason)
    assert len(run.data.tags.get("ajet.end_message", "")) == 5000 * (reason == "failed")


def test_the_configuration_is_in_the_parameters(context: WorkerContext) -> None:
    logger = logger_of(context, tags={"team": "one"}, experiment="walks", run_name="first")
    logger.start(run_of(algorithm={"learning_rate": 0.5}))
    (run,) = runs_of(context, "walks")
    assert run.info.run_name == "first"
    assert run.data.tags["team"] == "one"
    assert run.data.params["model.path"] == "/m"
    assert run.data.params["algorithm.learning_rate"] == "0.5"


def test_a_changed_setting_becomes_a_tag(context: WorkerContext) -> None:
    logger = logger_of(context)
    logger.start(run_of(evaluation={"pass_reward": 1.0}))
    logger.finish("stopped", "")
    logger.start(run_of(evaluation={"pass_reward": 0.5}))
    (run,) = runs_of(context)
    assert run.data.params["evaluation.pass_reward"] == "1.0"
    assert run.data.tags["ajet.changed.evaluation.pass_reward"] == "0.5"


def test_the_last_evaluation_of_a_step_counts(context: WorkerContext) -> None:
    def scored(mean: float | None, episodes: int) -> Evaluation:
        return EVALUATION.model_copy(
            update={"tag": "held-out", "reward_mean": mean, "episodes": episodes}
        )

    logger = logger_of(context)
    logger.start(run_of())
    logger.log_evaluation(scored(0.9, 1))
    logger.log_evaluation(scored(0.4, 2))
    (run,) = runs_of(context)
    of = f"evaluation/{EVALUATION.client_id}/held-out"
    assert run.data.metrics[f"{of}/reward_mean"] == 0.4
    assert run.data.metrics[f"{of}/episodes"] == 2


def test_a_step_may_have_more_metrics_than_a_request(context: WorkerContext) -> None:
    logger = logger_of(context)
    logger.start(run_of())
    logger.log(1, {f"reward_mean/{tag}": 0.0 for tag in range(1001)})
    (run,) = runs_of(context)
    assert len(run.data.metrics) == 1001


@pytest.mark.parametrize("name", ["", "a//b", "../up", "/top", "é=1", "x" * 400, "a:b", "a%"])
def test_mlflow_accepts_every_name(context: WorkerContext, name: str) -> None:
    logger = logger_of(context)
    logger.start(run_of())
    logger.log(1, {name: 1.0})
    (run,) = runs_of(context)
    assert list(run.data.metrics) == [mlflow_name(name)]


def test_different_names_stay_different() -> None:
    names = ["é", "ü", "a//b", "a/_/b", "x" * 300, "x" * 301, "a:b", "a_b"]
    assert len({mlflow_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "ajet.run_id", "mlflow.user"])
def test_reserved_tags_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="reserved or empty"):
        MlflowSettings(tags={name: "x"})


def test_a_start_that_failed_can_be_repeated(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    logger = logger_of(context, tracking_uri="http://127.0.0.1:9")
    for _ in range(2):
        with pytest.raises(Exception, match=r"127\.0\.0\.1"):
            logger.start(run_of())
