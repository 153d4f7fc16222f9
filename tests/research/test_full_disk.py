"""A full disk is a row of the ledger and a line of the record, and the study continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_core.errors import StoreFullError
from ajet_research.arenas import TrialBlueprint
from ajet_research.disk import RESERVE, DiskReserve
from ajet_research.events import AnyEvent, AttemptFailed, Hindered
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import FileRunner, Settled
from ajet_research.status import study_status
from ajet_research.verifying import verify_study
from tests.exec.usable import small_disk
from tests.research.studies import TEXT, written

FILLER = "filler"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    with small_disk(tmp_path / "disk", 2**22) as place:
        yield place


def fill(disk: Path, rest: int) -> None:
    """Leave so many bytes on a disk."""
    free = shutil.disk_usage(disk).free
    (disk / FILLER).write_bytes(b"x" * (free - rest))


def events(study: Path) -> list[AnyEvent]:
    return [row.event for row in read_ledger(study / LEDGER)]


def hindered(study: Path) -> list[str]:
    return [one.said for one in events(study) if isinstance(one, Hindered)]


class Filling(FileRunner):
    """Fills the disk before its third trial, as another program may."""

    rest = 0
    polls = 0

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled:
        """Run a trial, and fill the disk before one."""
        type(self).polls += 1
        if type(self).polls == 3:
            fill(self._directory.parents[1], self.rest)
        return super().poll(blueprint, attempt)


@pytest.mark.processes
@pytest.mark.parametrize("rest", [0, 2**13])
def test_a_disk_that_fills_is_a_row_and_a_line_and_no_result_is_lost(
    disk: Path, tmp_path: Path, rest: int
) -> None:
    source = written(tmp_path)
    calm = tmp_path / "calm"
    run_study(source, calm / "study", runner=FileRunner)
    runner = type("FillingOnce", (Filling,), {"rest": rest, "polls": 0})
    with pytest.raises(StoreFullError, match=str(disk)):
        run_study(source, disk / "study", runner=runner)
    (said,) = hindered(disk / "study")
    assert str(disk) in said
    assert "the leader stopped: the disk was full" in study_status(disk / "study").events[-1]
    # There still is no room.
    with pytest.raises(StoreFullError, match=str(disk)):
        run_study(source, disk / "study", runner=runner)
    (disk / FILLER).unlink()
    state = run_study(source, disk / "study", runner=runner)
    assert state.reported is not None
    assert not [one for one in events(disk / "study") if isinstance(one, AttemptFailed)]
    record = (disk / "study/report/record.md").read_text()
    assert record.count(": the disk was full: ") == len(hindered(disk / "study")) == 2
    for name in ("report.md", "report.json"):
        report = (disk / "study/report" / name).read_bytes()
        assert report == (calm / "study/report" / name).read_bytes()
    assert verify_study(disk / "study").problems == []
    assert not (disk / "study" / RESERVE).exists()


def test_a_full_disk_that_no_leader_could_record_is_a_row_of_the_next_one(
    tmp_path: Path,
) -> None:
    source, study = written(tmp_path), tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        run_study(source, study, runner=type("StoppingOnce", (Stopping,), {"left": 2}))
    # That leader was killed when it had given the room away.
    DiskReserve(study).release()
    assert run_study(source, study, runner=FileRunner).reported is not None
    assert hindered(study) == [f"The disk of {study} was full when the previous leader stopped."]
    assert verify_study(study).problems == []


class Stopping(FileRunner):
    """Is interrupted after some trials."""

    left = 0

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled:
        """Run a trial, or be interrupted."""
        if type(self).left == 0:
            raise KeyboardInterrupt
        type(self).left -= 1
        return super().poll(blueprint, attempt)


def test_room_is_kept_given_and_kept_again(tmp_path: Path) -> None:
    reserve, file = DiskReserve(tmp_path), tmp_path / RESERVE
    assert not reserve.fill()
    assert file.stat().st_size == 2**16
    reserve.release()
    assert file.stat().st_size == 0
    assert DiskReserve(tmp_path).fill()
    reserve.recorded()
    assert not reserve.fill()
    assert file.stat().st_size == 2**16


def test_a_leader_that_is_killed_while_it_keeps_room_leaves_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: int) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ajet_research.disk.secrets.token_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            DiskReserve(tmp_path).fill()
    assert not DiskReserve(tmp_path).fill()


@pytest.mark.processes
def test_room_that_cannot_be_kept_leaves_no_file(disk: Path) -> None:
    fill(disk, 2**14)
    assert not DiskReserve(disk).fill()
    assert not (disk / RESERVE).exists()


def test_a_finished_study_keeps_no_room(tmp_path: Path) -> None:
    run_study(written(tmp_path, TEXT), tmp_path / "study", runner=FileRunner)
    assert not (tmp_path / "study" / RESERVE).exists()
