"""Leaders as processes of their own, and waiting for what they do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ajet_core.errors import AjetError, ConfigError, StateError
from ajet_research.checking import check_study
from ajet_research.ledger import LEDGER
from ajet_research.places import LOCAL
from ajet_research.status import StudyStatus, study_status
from ajet_research.steering import leader_of

LEADER_LOG = "leader.log"
_START_SECONDS = 60.0
_TURN = 0.2
_LAST_LINES = 3
_LEADERS: list[subprocess.Popen[bytes]] = []
"""Those of this process: one that has ended stays a zombie until it is looked at."""


def begin_study(source: Path, directory: Path, parallel: int, on: str | None = None) -> StudyStatus:
    """Have a study led by a process of its own, unless it is led already or finished.

    :param on: where its trials run, see `runner_in`.
    :raises ConfigError: the study is invalid or refused, or its leader ended with an error.
    :raises StateError: the leader has not begun in time.
    """
    if not is_registered(directory):
        check_study(source)
    else:
        status = study_status(directory)
        if status.leader or status.phase == "finished":
            return status
    _LEADERS[:] = [one for one in _LEADERS if one.poll() is None]
    leader = _started_leader(source, directory, parallel, on)
    _LEADERS.append(leader)
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        ended = leader.poll()
        if ended:
            log = (directory / LEADER_LOG).read_text(encoding="utf-8", errors="replace")
            raise ConfigError(" ".join(log.strip().splitlines()[-_LAST_LINES:]))
        if is_registered(directory) and (ended is not None or leader_of(directory)):
            return study_status(directory)
        time.sleep(_TURN)
    raise StateError(
        f"The leader, process {leader.pid}, has not begun within {_START_SECONDS:g} s. On a busy "
        f"machine it may still begin: see {directory / LEADER_LOG}, and run the same command again."
    )


def wait_for_news(
    directory: Path, seconds: float, *, looks: bool = True
) -> tuple[bool, StudyStatus]:
    """Wait until a look is taken, the study waits for a person, is not led, or is finished.

    :param looks: whether a look is news.
    :return: whether any of this holds, and the status.
    :raises ConfigError: there is no study.
    """
    # Before the status, so that a row that is written meanwhile is noticed.
    seen = _signature(directory)
    now = study_status(directory)
    taken = now.looks if looks else now.planned_looks
    until = time.monotonic() + seconds
    while not (news := _is_news(now, taken)) and time.monotonic() < until:
        time.sleep(min(_TURN, max(0.0, until - time.monotonic())))
        # Reading a long ledger takes time.
        if (signature := _signature(directory)) != seen:
            seen, now = signature, study_status(directory)
    return news, now


def _signature(directory: Path) -> tuple[int, str]:
    """Return what changes when a row is written, or when the leader does."""
    try:
        changed = (directory / LEDGER).stat().st_mtime_ns
    except OSError:
        changed = 0
    return changed, leader_of(directory)


def is_registered(directory: Path) -> bool:
    """Return whether a directory has the ledger of a registered study."""
    try:
        study_status(directory)
    except AjetError:
        return False
    return True


def _is_news(now: StudyStatus, taken: int) -> bool:
    working = now.phase in ("running", "ending", "decided") and bool(now.leader)
    return not working or now.looks > taken


def _started_leader(
    source: Path, where: Path, parallel: int, on: str | None
) -> subprocess.Popen[bytes]:
    source, where = source.resolve(), where.resolve()
    places = [] if on is None else ["--on", on if on == LOCAL else str(Path(on).resolve())]
    where.mkdir(parents=True, exist_ok=True)
    with (where / LEADER_LOG).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - this program
            [
                *(sys.executable, "-P", "-m", "ajet_cli.main", "research", "run"),
                *(str(source), "--dir", str(where), "--parallel", str(parallel), *places),
            ],
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # It outlives who has started it, and its terminal.
            start_new_session=True,
        )
