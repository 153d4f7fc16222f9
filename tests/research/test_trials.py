"""Trials in processes of their own: they resume, are killed at their limit, and count once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet_core.files import lock_file
from ajet_research.arenas import TrialBlueprint
from ajet_research.arenas.synthetic import RAW, SyntheticArena
from ajet_research.events import Finished
from ajet_research.leader import MachineClock, run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import (
    FileRunner,
    LocalRunner,
    Settled,
    settled_attempt,
    write_blueprint,
)
from ajet_research.suites import faults, killing
from ajet_research.verifying import verify_study
from ajet_research.worker import (
    HELD,
    LOCK,
    STORE,
    AttemptResult,
    begun_path,
    main,
    result_path,
)
from tests.research.studies import TEXT, written

pytestmark = pytest.mark.processes


def blueprint(seconds: float = 30.0, **settings: Any) -> TrialBlueprint:
    arena = SyntheticArena()
    resolved = arena.resolve({"world": "clear", **settings})
    return TrialBlueprint(
        arena="synthetic",
        evaluator=arena.evaluator(resolved),
        settings=resolved,
        seed=1,
        seconds=seconds,
    )


def settled(runner: LocalRunner, its: TrialBlueprint, attempt: int = 1) -> Settled:
    clock = MachineClock()
    while (result := runner.poll(its, attempt)) is None:
        clock.pause(0.02)
    return result


def supervisor(trial: Path) -> int:
    """The process that holds a trial, once it does and has begun to measure."""
    clock = MachineClock()
    while not (trial / STORE / RAW).exists():
        clock.pause(0.02)
    return int((trial / LOCK).read_text())


def runner(directory: Path) -> LocalRunner:
    directory.mkdir(exist_ok=True)
    return LocalRunner(directory, SyntheticArena())


def test_a_trial_whose_time_is_over_is_killed_and_is_an_outcome(tmp_path: Path) -> None:
    its = blueprint(0.3, world="endless", method="b")
    result = settled(runner(tmp_path), its)
    assert result.limit
    assert result.evidence is not None
    assert result.evidence.failed == "time limit"


class Endless(FileRunner):
    """Trials of method b never end: their workers kill them when their time is over."""

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled:
        """Leave what such a worker leaves, or run a trial to its end."""
        if blueprint.settings["method"] != "b":
            return super().poll(blueprint, attempt)
        trial = self._directory / blueprint.id
        (trial / STORE).mkdir(parents=True, exist_ok=True)
        write_blueprint(trial, blueprint)
        begun_path(trial, attempt).touch()
        result = AttemptResult(attempt=attempt, status="limit", cause="", seconds=30.0)
        result_path(trial, attempt).write_text(result.model_dump_json())
        return settled_attempt(self._arena, blueprint, trial, attempt)


def test_trials_that_never_end_are_rows_and_lines_with_their_cause(tmp_path: Path) -> None:
    state = run_study(written(tmp_path), tmp_path / "study", runner=Endless)
    assert state.verdicts["b-vs-a"].verdict == "worse"
    outcomes = [
        row.event
        for row in read_ledger(tmp_path / "study" / LEDGER)
        if isinstance(row.event, Finished)
    ]
    over = {one.trial for one in outcomes if one.limit}
    assert {one.failed for one in outcomes} == {"", "time limit"}
    assert over == {id_ for id_, one in state.trials.items() if "b" in one.arm and one.outcome}
    report = (tmp_path / "study/report/report.md").read_text()
    (line,) = [one for one in report.splitlines() if "count with the registered outcome" in one]
    assert {id_ for id_ in over if f"(#trial-{id_}) (" in line} == over
    assert line.count("time limit") == len(over)
    assert verify_study(tmp_path / "study").problems == []


def test_a_trial_that_raises_is_a_fault_of_the_machine_with_its_last_line(tmp_path: Path) -> None:
    its = blueprint()
    (tmp_path / its.id / STORE / RAW).mkdir(parents=True)
    result = settled(runner(tmp_path), its)
    assert result.evidence is None
    assert result.cause.startswith("exit status 1: IsADirectoryError")


def test_another_attempt_continues_the_raw_store_of_a_killed_one(tmp_path: Path) -> None:
    its = blueprint(steps=4, step_seconds=0.2)
    whole = settled(runner(tmp_path / "whole"), its)
    killed = runner(tmp_path / "killed")
    killed.poll(its, 1)
    os.kill(supervisor(tmp_path / "killed" / its.id), signal.SIGKILL)
    lost = settled(killed, its)
    assert (lost.evidence, lost.cause) == (None, "the worker ended with -9")
    before = (tmp_path / "killed" / its.id / STORE / RAW).read_bytes()
    again = settled(killed, its, 2)
    assert again.evidence == whole.evidence
    after = (tmp_path / "killed" / its.id / STORE / RAW).read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])


def failed_for_space(directory: Path, its: TrialBlueprint) -> None:
    """Leave what a worker leaves whose trial failed because the disk is full."""
    trial = directory / its.id
    (trial / STORE).mkdir(parents=True)
    begun_path(trial, 1).touch()
    cause = "exit status 1: OSError: [Errno 28] No space left on device"
    result = AttemptResult(attempt=1, status="failed", cause=cause, seconds=1.0)
    result_path(trial, 1).write_text(result.model_dump_json())


def test_an_attempt_that_failed_for_space_under_another_leader_starts_again(tmp_path: Path) -> None:
    its = blueprint()
    failed_for_space(tmp_path, its)
    result = settled(runner(tmp_path), its)
    assert result.evidence is not None
    assert result_path(tmp_path / its.id, 1).exists()


def test_an_attempt_that_fails_for_space_is_an_error_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = blueprint(steps=4, step_seconds=0.2)
    mine = runner(tmp_path)
    mine.poll(its, 1)
    pid = supervisor(tmp_path / its.id)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match="No space left on device"):
            settled(mine, its)
    result = settled(mine, its)
    assert (result.evidence is not None, result.cause) == (True, "")


def test_another_leader_takes_the_result_of_a_worker_that_it_did_not_start(tmp_path: Path) -> None:
    its = blueprint(steps=3, step_seconds=0.1)
    runner(tmp_path).poll(its, 1)
    supervisor(tmp_path / its.id)
    result = settled(runner(tmp_path), its)
    assert result.evidence is not None
    assert not (tmp_path / its.id / "begun-2").exists()


def test_a_trial_that_is_held_is_not_started_twice(tmp_path: Path) -> None:
    descriptor = lock_file(tmp_path / LOCK)
    assert main(tmp_path, 1) == HELD
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == [tmp_path / LOCK]


def test_a_study_runs_in_processes_and_verifies(tmp_path: Path) -> None:
    text = TEXT.replace(
        "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }", "{ seeds = 6, alpha = 0.05 }"
    )
    state = run_study(written(tmp_path, text), tmp_path / "study", parallel=4)
    assert state.reported is not None
    assert verify_study(tmp_path / "study").problems == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_kills_at_random_moments_change_no_byte_of_the_report() -> None:
    pytest.importorskip("mcp")
    pytest.importorskip("torch")
    result = faults.run_faults(seed=1, size=6)
    assert result["passed"], result
    assert result["studies_by_kind"].keys() == {"plain", "driven", "swarm"}
    assert sum(result["kills_by_kind"].values()) == result["kills"] >= 6


def test_a_kind_of_study_that_cannot_run_is_named_and_the_suite_has_not_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "_ABSENT", {"driven": lambda: "no mcp", "swarm": str})
    result = faults.run_faults(seed=1, size=0)
    assert (result["skipped"], result["kills"]) == ({"driven": "no mcp"}, 0)
    assert not result["passed"]


def test_processes_are_found_by_what_has_started_them_and_where(tmp_path: Path) -> None:
    waiting = [sys.executable, "-I", "-S", "-c", "input()", "mcp"]
    with subprocess.Popen(waiting, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.pid in killing.children(os.getpid())
        assert process.pid in killing.mcp_servers(os.getpid())
        assert killing.left_in(tmp_path) == [process.pid]
        assert killing.kill(process.pid)
        process.wait()
        assert killing.left_in(tmp_path) == []
        assert not killing.kill(process.pid)
