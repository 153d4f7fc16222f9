"""What trials may take of the disk, and what they took, are rows of the ledger that are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.files import write_whole
from ajet_research import runners
from ajet_research.arenas import Arena, TrialBlueprint
from ajet_research.disk import used_mebibytes
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import FileRunner, settled_attempt
from ajet_research.status import study_status
from ajet_research.verifying import verify_study
from ajet_research.worker import AttemptResult, result_path
from tests.research.studies import TEXT, written

LIMITED = TEXT + "trial_disk_mib = 2\ndisk_mib = 40\n"


class MeasuringRunner(FileRunner):
    """Its results have the size of the directory, as a worker's."""

    def __init__(self, directory: Path, arena: Arena) -> None:
        super().__init__(directory, arena)
        self.directory, self.arena = directory, arena

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> runners.Settled:
        super().poll(blueprint, attempt)
        trial = self.directory / blueprint.id
        its = AttemptResult(attempt=attempt, status="done", cause="", seconds=0, mebibytes=0.25)
        write_whole(result_path(trial, attempt), its.model_dump_json().encode())
        return settled_attempt(self.arena, blueprint, trial, attempt)


def limited_study(
    tmp_path: Path, runner: Callable[[Path, Arena], MeasuringRunner] = MeasuringRunner
) -> Path:
    run_study(written(tmp_path, LIMITED), tmp_path / "study", runner=runner)
    return tmp_path / "study"


def test_what_is_set_aside_and_what_was_taken_are_rows(tmp_path: Path) -> None:
    directory = limited_study(tmp_path)
    events = [row.event for row in read_ledger(directory / LEDGER)]
    assert {one.mebibytes for one in events if one.kind == "reserved"} == {2.0}
    assert {one.mebibytes for one in events if one.kind == "finished"} == {0.25}
    assert verify_study(directory).problems == []


def test_a_trial_that_runs_counts_with_its_limit(tmp_path: Path) -> None:
    class Interrupted(MeasuringRunner):
        def poll(self, blueprint: TrialBlueprint, attempt: int) -> runners.Settled:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        limited_study(tmp_path, Interrupted)
    directory = tmp_path / "study"
    spent = {one.name: one.used for one in study_status(directory).budget}
    assert spent["disk_mib"] == pytest.approx(used_mebibytes(directory) + 2.0, abs=0.01)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (0.5, "the result of its attempt is missing or another one"),
        (3.0, "it has an outcome, though its directory was too large"),
    ],
)
def test_an_outcome_with_another_size_is_noticed(size: float, problem: str, tmp_path: Path) -> None:
    class Forging(MeasuringRunner):
        def poll(self, blueprint: TrialBlueprint, attempt: int) -> runners.Settled:
            settled = super().poll(blueprint, attempt)
            path = result_path(self.directory / blueprint.id, attempt)
            path.write_text(path.read_text().replace("0.25", str(size)))
            if size < 2.0:
                return settled
            return replace(settled, mebibytes=size)

    problems = verify_study(limited_study(tmp_path, Forging)).problems
    assert problems
    assert all(problem in one for one in problems)
