"""How people steer a study that runs: requests, of which its leader makes rows of the ledger.

Only the holder of a study's lock writes its ledger. A request waits as a file in ``requests/``
until the leader takes it. Without a leader, `steer` takes the lock for a moment and writes the row
itself. A request has an id, so that it counts once, whenever a process is killed.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import BusyError, ConfigError, StateError, UnreadableFileError
from ajet_core.files import lock_file, read_bytes, write_whole
from ajet_research.events import REQUESTS, AnyRequest
from ajet_research.ledger import LEDGER, LedgerRow, StudyLedger, read_ledger
from ajet_research.state import StudyState, fold

REQUESTED = "requests"
LEADER_LOCK = "leader.lock"
_TRIES = 6
"""For the lock, which a command may hold for a moment."""
_TURN = 0.05
_PATIENCE = 10.0
"""Seconds after which a request is left to a leader that is busy."""
_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of a request.

    :param taken: whether it is a row of the ledger; if not, its leader takes it later.
    :param led: whether a leader is at work.
    """

    taken: bool
    led: bool


def new_request(kind: str, *, by: str, why: str = "", **content: Any) -> AnyRequest:
    """Return a request of now.

    :param kind: ``paused``, ``resumed``, ``stopped``, ``amended`` or ``answered``.
    :param content: of the event, such as ``budget`` or ``answer``.
    :raises ConfigError: it is invalid.
    """
    event = {
        "kind": kind,
        "request": secrets.token_hex(8),
        "by": " ".join(by.split()),
        "at": datetime.now(UTC).replace(microsecond=0),
        "why": " ".join(why.split()),
        **content,
    }
    try:
        return REQUESTS.validate_python(event)
    except InvalidModelError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise ConfigError(f"{where}: {first['msg']}") from None


def steer(directory: Path, event: AnyRequest, *, patience: float = _PATIENCE) -> Steered:
    """Write a request into the ledger, or have the leader do it.

    :param patience: seconds to wait for a leader that is busy.
    :raises ConfigError: there is no study in `directory`.
    :raises StateError: the study cannot be steered like this now.
    :raises DamagedRecordError: its ledger is damaged; nothing was changed.
    :raises StoreError: the row or the request cannot be written.
    """
    path = directory / LEDGER
    if not path.exists():
        raise ConfigError(f"There is no study in {directory}.")
    file = directory / REQUESTED / f"{time.time_ns():020d}-{event.request}.json"
    until = time.monotonic() + patience
    written = False
    while True:
        try:
            with held(directory, tries=1), closing(StudyLedger(path)) as ledger:
                state = fold(ledger.rows)
                for waiting in requests_of(directory):
                    _take(ledger, state, waiting)
                if not _is_in(state, event):
                    _check(state, event)
                    _append(ledger, state, event)
                return Steered(taken=True, led=False)
        except BusyError:
            pass
        if not written:
            _check(fold(read_ledger(path)), event)
            file.parent.mkdir(exist_ok=True)
            write_whole(file, REQUESTS.dump_json(event))
            written = True
        elif not file.exists():
            # The leader writes the row first.
            state = fold(read_ledger(path))
            if not _is_in(state, event):
                _check(state, event)
                raise StateError(f"The leader of {directory} has not accepted this. Try again.")
            return Steered(taken=True, led=True)
        if time.monotonic() > until:
            return Steered(taken=False, led=True)
        time.sleep(_TURN)


def requests_of(directory: Path) -> list[tuple[Path, AnyRequest]]:
    """Return the requests that wait, oldest first. Files that cannot be decoded are removed."""
    waiting = []
    for path in sorted((directory / REQUESTED).glob("[!.]*.json")):
        try:
            waiting.append((path, REQUESTS.validate_json(read_bytes(path, _BYTES), strict=True)))
        except (InvalidModelError, UnreadableFileError, FileNotFoundError):
            path.unlink(missing_ok=True)
    return waiting


def to_append(state: StudyState, event: AnyRequest) -> AnyRequest | None:
    """Return a request as the row that it becomes now; None if it must not become one."""
    if _is_in(state, event) or state.refusal(event):
        return None
    return event.model_copy(update={"looks": len(state.findings)})


@contextmanager
def held(directory: Path, *, tries: int = _TRIES) -> Iterator[None]:
    """Hold a study's directory against other leaders.

    :param tries: a command that writes a row holds it for a moment.
    :raises BusyError: another leader has it.
    """
    for left in reversed(range(tries)):
        try:
            descriptor = lock_file(directory / LEADER_LOCK)
            break
        except BlockingIOError as error:
            if left:
                time.sleep(_TURN)
                continue
            raise BusyError(
                f"The study in {directory} is led by process {error} on this machine. Wait for "
                "it, or end it; its trials continue with the next leader."
            ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def leader_of(directory: Path) -> str:
    """Return the process id of the leader that is at work; "" if none is, on this machine."""
    import fcntl

    try:
        descriptor = os.open(directory / LEADER_LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    return ""


def _take(ledger: StudyLedger, state: StudyState, waiting: tuple[Path, AnyRequest]) -> None:
    path, event = waiting
    if to_append(state, event) is not None:
        _append(ledger, state, event)
    path.unlink(missing_ok=True)


def _append(ledger: StudyLedger, state: StudyState, event: AnyRequest) -> None:
    row = to_append(state, event)
    assert row is not None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # No leader was at work meanwhile.
    state.apply(ledger.append(row, time=now, elapsed=_elapsed(ledger.rows)))


def _elapsed(rows: list[LedgerRow]) -> float:
    return rows[-1].elapsed if rows else 0.0


def _check(state: StudyState, event: AnyRequest) -> None:
    if refusal := state.refusal(event):
        raise StateError(refusal)


def _is_in(state: StudyState, event: AnyRequest) -> bool:
    return event.request in {one.request for one in state.steered}
