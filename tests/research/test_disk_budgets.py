"""A trial's disk is set aside before it starts, and a trial that takes more is ended."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError
from ajet_research import worker
from ajet_research.arenas import TrialBlueprint
from ajet_research.checking import check_study
from ajet_research.disk import used_mebibytes
from ajet_research.registration import register
from ajet_research.runners import LocalRunner, settled_attempt, write_blueprint
from ajet_research.study import parse_study
from ajet_research.suites import outside
from ajet_research.suites.spending import METHODS, SpendingArena
from ajet_research.worker import (
    DISK_LIMIT,
    LOG,
    STORE,
    TIME_LIMIT,
    TOO_LATE,
    AttemptResult,
    result_path,
)
from tests.research.studies import TEXT, study, written

LIMITED = TEXT + "trial_disk_mib = 2\ndisk_mib = 40\n"


def blueprint(method: str, *, disk_mib: float | None = 0.5, seconds: float = 60) -> TrialBlueprint:
    return TrialBlueprint(
        arena="spending",
        evaluator="",
        settings={"method": method},
        seed=1,
        seconds=seconds,
        disk_mib=disk_mib,
    )


def attempted(
    trial: Path, its: TrialBlueprint, monkeypatch: pytest.MonkeyPatch, until: float = math.inf
) -> AttemptResult:
    """The result of a worker that runs in this process."""
    monkeypatch.setattr(worker, "load_arena", lambda name: SpendingArena())
    trial.mkdir(exist_ok=True)
    write_blueprint(trial, its)
    assert worker.main(trial, 1, until=until) == 0
    return AttemptResult.model_validate_json(result_path(trial, 1).read_bytes())


@pytest.mark.processes
@pytest.mark.parametrize("method", ["one-file", "many-files"])
def test_a_trial_above_its_limit_is_killed_and_its_files_are_removed(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = blueprint(method)
    result = attempted(tmp_path, its, monkeypatch)
    assert (result.status, result.reached(its)) == ("limit", DISK_LIMIT)
    assert list((tmp_path / STORE).iterdir()) == []
    assert used_mebibytes(tmp_path) < 0.1
    settled = settled_attempt(SpendingArena(), its, tmp_path, 1)
    assert settled.evidence is not None
    assert (settled.evidence.failed, settled.limit) == (DISK_LIMIT, True)
    assert settled.mebibytes == result.mebibytes
    assert (result.mebibytes or 0) > 0.5


@pytest.mark.processes
def test_no_file_of_a_trial_grows_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_clear", lambda trial: None)
    attempted(tmp_path, blueprint("one-file"), monkeypatch)
    (path,) = (tmp_path / STORE).iterdir()
    assert path.stat().st_size <= 2**19


@pytest.mark.processes
@pytest.mark.parametrize("limit", [2.0, None])
def test_a_trial_below_its_limit_keeps_its_files_and_has_its_size(
    limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = blueprint("modest", disk_mib=limit)
    result = attempted(tmp_path, its, monkeypatch)
    settled = settled_attempt(SpendingArena(), its, tmp_path, 1)
    assert (result.status, result.reached(its)) == ("done", "")
    assert settled.evidence is not None
    assert settled.evidence.metrics == {"score": 1.01}
    if limit is None:
        assert settled.mebibytes is None
        assert "mebibytes" not in json.loads(result_path(tmp_path, 1).read_bytes())
    else:
        assert 1.0 < (settled.mebibytes or 0.0) < 2.0


@pytest.mark.processes
def test_the_end_of_the_log_of_a_trial_that_was_too_large_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOG).write_bytes(bytes(2**20) + b"the end")
    attempted(tmp_path, blueprint("busy"), monkeypatch)
    content = (tmp_path / LOG).read_bytes()
    assert len(content) == 2**16
    assert content.endswith(b"the end")


@pytest.mark.processes
def test_a_trial_that_would_outlast_the_study_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = attempted(tmp_path, blueprint("busy"), monkeypatch, until=time.monotonic() + 59)
    assert (result.status, result.cause, result.seconds) == ("failed", TOO_LATE, 0.0)
    assert list((tmp_path / STORE).iterdir()) == []


def test_a_worker_gets_what_is_left_of_the_time_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    class Started:
        def __init__(self, command: list[str], **options: object) -> None:
            commands.append(command)

        def poll(self) -> None:
            return None

    monkeypatch.setattr("subprocess.Popen", Started)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    runner = LocalRunner(tmp_path, SpendingArena())
    runner.left = 60.5
    assert runner.poll(blueprint("modest"), 1) is None
    assert commands[0][-2:] == ["0", "1060.5"]


def test_a_limit_is_a_part_of_the_trial_only_where_it_is_set() -> None:
    (without, *_) = register(study(), Path()).blueprints.values()
    (limited, *_) = register(
        study(budget__trial_disk_mib=2, budget__disk_mib=40), Path()
    ).blueprints.values()
    assert "disk_mib" not in without.model_dump()
    assert (without.limits, limited.limits) == ((30, None), (30, 2))
    assert without.id != limited.id


def test_a_worst_case_above_the_disk_is_refused_with_its_number() -> None:
    with pytest.raises(ConfigError) as caught:
        register(study(budget__trial_disk_mib=100), Path())
    assert (
        "In the worst case, 17 trials of 100 MiB and 1.53 MiB for the ledger and the report take "
        "1702 MiB of the disk, and budget.disk_mib is 1024. Raise it, or lower "
        "budget.trial_disk_mib."
    ) in str(caught.value)


def test_a_check_says_what_a_study_may_take(tmp_path: Path) -> None:
    assert check_study(written(tmp_path, LIMITED)).disk_mib == pytest.approx(35.53)
    assert check_study(written(tmp_path)).disk_mib is None


def test_what_cannot_be_read_ends_no_leader_and_hides_nothing_from_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so this refuses what the modes of files refuse to others."""
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / "hidden").write_bytes(bytes(2**20))
    (tmp_path / "shown").write_bytes(bytes(2**20))
    locked.chmod(0)
    scandir = os.scandir

    def refusing(path: Path) -> Any:
        if not Path(path).stat().st_mode & 0o400:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    assert 1.0 <= used_mebibytes(tmp_path) < 1.1
    assert 2.0 <= used_mebibytes(tmp_path, unlock=True) < 2.1


def test_a_time_limit_is_another_limit() -> None:
    its = blueprint("busy", seconds=2)
    for seconds, reached in ((1.9, ""), (2.0, TIME_LIMIT)):
        result = AttemptResult(attempt=1, status="limit", cause="", seconds=seconds, mebibytes=0.5)
        assert result.reached(its) == reached


def test_each_case_of_the_suite_has_methods_and_limits_that_exist() -> None:
    for name, limits, levels in outside._CASES:
        assert set(levels) <= set(METHODS), name
        its = parse_study(outside.study_file(limits, levels), name)
        assert its.trials == its.budget.trials == 6
        assert (its.most_disk_mib or 0.0) <= its.budget.disk_mib


@pytest.mark.nightly
@pytest.mark.processes
def test_real_studies_take_no_more_than_their_budget() -> None:
    result = outside.run_real()
    assert result["problems"] == []
    assert max(result["overruns"].values()) == 0.0
