"""Online: W&B's own library, against a server on loopback that stands for the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ajet_loggers_wandb.logger import WandbLogger
from ajet_loggers_wandb.settings import WandbSettings
from wandb_service import KEY, WandbService

from ajet_core.interfaces import LoggedRun, WorkerContext
from ajet_core.protocol import Finding, RunConfig
from ajet_testing.suites.logger_suite import EVALUATION, SYSTEM

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

RUN = "0123456789ab"
EVALUATED = f"evaluation/{EVALUATION.client_id}/{EVALUATION.tag}/reward_mean"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WandbService]:
    """One service for all tests: the library reads its environment once in a process."""
    own = tmp_path_factory.mktemp("wandb")
    running = WandbService()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", running.url)
        patch.setenv("WANDB_API_KEY", KEY)
        # Neither the settings nor the keys of whoever runs the test.
        patch.setenv("WANDB_CONFIG_DIR", str(own / "config"))
        patch.setenv("NETRC", str(own / "netrc"))
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        yield running
    running.close()


@pytest.fixture
def service(running: WandbService) -> WandbService:
    running.forget()
    return running


def logged(run_dir: Path, resumed_step: int = 0) -> WandbLogger:
    logger = WandbLogger(WandbSettings(project="walks"), WorkerContext(run_dir))
    config = RunConfig.model_validate({"model": {"path": "/m"}})
    logger.start(LoggedRun(RUN, config, resumed_step, 0))
    return logger


def losses(service: WandbService) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in service.rows[RUN] if "loss" in row]


def test_everything_arrives(service: WandbService, tmp_path: Path) -> None:
    logger = logged(tmp_path)
    for step in (1, 2):
        logger.log(step, {"loss": float(step)})
    logger.log_system(1000.5, 2, SYSTEM)
    logger.log_evaluation(EVALUATION)
    logger.log_finding(2, Finding(code="kl", message="<b>grew</b>", seconds=0.0, stuck=False))
    logger.finish("failed", "the disk is full")
    assert losses(service) == [(1, 1.0), (2, 2.0)]
    assert [row["system/time"] for row in service.rows[RUN] if "system/time" in row] == [1000.5]
    assert [row[EVALUATED] for row in service.rows[RUN] if EVALUATED in row]
    assert service.config[RUN]["model"]["value"]["path"] == "/m"
    assert service.groups == {RUN: RUN}
    (alert,) = service.alerts
    assert (alert["title"], alert["text"]) == ("kl", "step 2: <b>grew</b>")
    assert service.summary[RUN]["ajet_end"] == "failed"
    assert service.ends == [(RUN, 1)]


def test_a_run_continues_after_its_last_row(service: WandbService, tmp_path: Path) -> None:
    for resumed in (0, 2):
        logger = logged(tmp_path, resumed)
        for step in (resumed + 1, resumed + 2):
            logger.log(step, {"loss": float(step)})
        logger.close()
    assert losses(service) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    numbers = [row["_step"] for row in service.rows[RUN]]
    assert numbers == sorted(set(numbers))


def test_rows_arrive_after_the_service_was_away(service: WandbService, tmp_path: Path) -> None:
    service.refuse = 2
    logger = logged(tmp_path)
    logger.log(1, {"loss": 1.0})
    logger.close()
    assert service.refuse == 0
    assert losses(service) == [(1, 1.0)]


def test_the_key_is_in_no_body_or_file(service: WandbService, tmp_path: Path) -> None:
    logger = logged(tmp_path)
    logger.log(1, {"loss": 1.0})
    logger.close()
    assert service.keys == {KEY}
    assert not any(KEY in body for body in service.bodies)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in content for content in files)
