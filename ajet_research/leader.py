"""The leader of a study: computes the next actions, performs them, and appends each result.

Its whole state is in the ledger and in the directories of the trials. It can be killed at any
moment, and the next leader continues after the last row.
"""

from __future__ import annotations

import itertools
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import ajet_core
from ajet_core.errors import AjetError, ConfigError, StoreError, StoreFullError
from ajet_core.files import write_whole
from ajet_research.actions import (
    Action,
    Advance,
    Ask,
    Await,
    GiveUp,
    Hold,
    Proceed,
    Propose,
    Reserve,
    Stop,
    actions,
)
from ajet_research.analysis import analyse, decision, final_verdicts, kept
from ajet_research.arenas import Arena, changed_code, load_arena, registered_arena
from ajet_research.disk import DiskReserve, used_mebibytes
from ajet_research.events import (
    Answered,
    AnyEvent,
    Asked,
    AttemptFailed,
    ClockJumped,
    Decided,
    EarlierStudy,
    Exhausted,
    Finished,
    Hindered,
    KnownMetric,
    LeaderStarted,
    Looked,
    Lost,
    Registered,
    Reported,
    Reserved,
)
from ajet_research.ledger import LEDGER, LedgerRow, StudyLedger, read_ledger
from ajet_research.registration import Registration, code_of, register
from ajet_research.report import compile_report
from ajet_research.runners import FULL_DISK, LocalRunner, TrialRunner
from ajet_research.search.sampling import check_sampler
from ajet_research.search.steps import next_candidate, next_rung
from ajet_research.state import StudyState, fold
from ajet_research.status import earlier_studies
from ajet_research.steering import held, requests_of, to_append
from ajet_research.study import Study, parse_study, study_text

TRIALS = "trials"
REPORT = "report"
_TURN = 0.02
_HELD_TURN = 0.25
"""Seconds between two looks for requests while nothing runs."""
_JUMP = 60.0
"""Most seconds by which wall clock and monotonic clock may advance differently between rows."""
_MEASURED_EVERY = 50
"""Turns between two measurements of the size of the directory."""


class StudyClock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """Return the time of the wall clock."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""

    def pause(self, seconds: float) -> None:
        """Wait."""


class MachineClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


@dataclass(slots=True)
class StudyLeader:
    """Leads one study to its report.

    :param ledger: the rows of the study; the first one is its registration.
    :param runner: runs its trials.
    :param directory: of the study; None writes no files, as suites of `ajet research bench` do.
    :param parallel: trials at a time.
    :param on_event: called after each row.
    """

    ledger: StudyLedger
    runner: TrialRunner
    directory: Path | None
    clock: StudyClock = field(default_factory=MachineClock)
    parallel: int = 1
    on_event: Callable[[AnyEvent], None] | None = None
    state: StudyState = field(init=False)
    _began: float = field(init=False)
    _last: tuple[datetime, float] | None = None

    def __post_init__(self) -> None:
        self.state = fold(self.ledger.rows)
        self._began = self.clock.monotonic()

    def lead(self) -> StudyState:
        """Bring the study to its end.

        :raises StoreError: the ledger cannot be written, or a trial cannot run on this machine now.
        """
        unfinished = self.state.reported is None
        reserve = DiskReserve(self.directory) if self.directory and unfinished else None
        try:
            return self._lead(reserve)
        except StoreFullError as error:
            if reserve is not None:
                reserve.release()
                # If other programs use the freed space first, the next leader records it.
                with suppress(StoreError, OSError):
                    self._record_full_disk(reserve, error.message)
            raise

    def _lead(self, reserve: DiskReserve | None) -> StudyState:
        if self.state.reported is None:
            self._append(LeaderStarted(host=socket.gethostname(), pid=os.getpid()))
        if reserve is not None and reserve.fill():
            said = f"The disk of {self.directory} was full when the previous leader stopped."
            self._record_full_disk(reserve, said)
        for turn in itertools.count():
            self._take_requests()
            if turn % _MEASURED_EVERY == 0:
                self._check_measured_limits()
            if not (todo := actions(self.state)):
                break
            if not self._advance(todo):
                self.clock.pause(_HELD_TURN if isinstance(todo[0], Hold) else _TURN)
        if reserve is not None:
            reserve.remove()
        return self.state

    def _record_full_disk(self, reserve: DiskReserve, said: str) -> None:
        self._append(Hindered(cause="the disk was full", said=said))
        reserve.recorded()

    def _take_requests(self) -> None:
        """Record people's requests; remove the file of each once its row is written."""
        for path, event in requests_of(self.directory) if self.directory else ():
            if (row := to_append(self.state, event)) is not None:
                self._append(row)
            path.unlink(missing_ok=True)

    def _advance(self, todo: list[Action]) -> bool:
        """Perform the actions that can be performed now; return whether anything happened.

        Returns as soon as an attempt settles: the remaining actions may be outdated.
        """
        running = sum(isinstance(action, Await) for action in todo)
        happened = False
        for action in todo:
            match action:
                case Reserve():
                    if running < self.parallel:
                        running += 1
                        happened = True
                        if self._reserve(action.trial):
                            return True
                case Await():
                    if self._await(action.trial):
                        return True
                case GiveUp():
                    happened = True
                    self._append(Lost(trial=action.trial))
                case Stop():
                    happened = True
                    self._append(
                        Exhausted(resource=action.resource, used=action.used, limit=action.limit)
                    )
                case Ask():
                    happened = True
                    self._ask(action.question)
                case Hold():
                    happened = self._answer_by_default() or happened
                case Propose() | Advance() | Proceed():
                    happened = True
                    self._proceed(action)
        return happened

    @property
    def _arena(self) -> Arena:
        return registered_arena(self.state.registered.base.arena, self.state.files)

    def _ask(self, question: str) -> None:
        (registered,) = (one for one in self.state.registered.ask if one.id == question)
        deadline = self.clock.now() + timedelta(hours=registered.deadline_hours)
        self._append(Asked(question=question, deadline=deadline))

    def _answer_by_default(self) -> bool:
        """Answer the open question if its deadline has passed; return whether it did."""
        asked, now = self.state.asked, self.clock.now()
        if asked is None or now < asked.deadline:
            return False
        (registered,) = (one for one in self.state.registered.ask if one.id == asked.question)
        self._append(
            Answered(
                request="",
                by="",
                at=now,
                why="",
                looks=len(self.state.findings),
                question=registered.id,
                answer=registered.default,
                default=True,
            )
        )
        return True

    def _reserve(self, trial: str) -> bool:
        trial_state = self.state.trials[trial]
        seconds, mebibytes = trial_state.blueprint.limits
        attempt = trial_state.attempts + 1
        self._append(Reserved(trial=trial, attempt=attempt, seconds=seconds, mebibytes=mebibytes))
        return self._await(trial)

    def _await(self, trial: str) -> bool:
        """See that an attempt runs; return whether it has settled."""
        trial_state = self.state.trials[trial]
        try:
            if (self.state.held or self.state.over) and self.runner.withdraw(
                trial_state.blueprint, trial_state.attempts, final=self.state.over
            ):
                return False
            self.runner.left = self.state.budget.wall_hours * 3600 - self._wall()
            settled = self.runner.poll(trial_state.blueprint, trial_state.attempts)
        except OSError as error:
            kind = StoreFullError if error.errno in FULL_DISK else StoreError
            where = f" in {self.directory}" if self.directory else ""
            raise kind(
                f"The trial {trial}{where} cannot run: {error}. Its attempt does not count, and no "
                "result is lost. Remove the cause and run the same command again."
            ) from error
        if settled is None:
            return False
        if settled.evidence is None:
            event: AnyEvent = AttemptFailed(
                trial=trial,
                attempt=trial_state.attempts,
                cause=settled.cause,
                seconds=settled.seconds,
                mebibytes=settled.mebibytes,
            )
        else:
            event = Finished(
                trial=trial,
                attempt=trial_state.attempts,
                metrics=dict(settled.evidence.metrics),
                failed=settled.evidence.failed,
                limit=settled.limit,
                fingerprint=settled.evidence.fingerprint,
                store=dict(settled.store),
                seconds=settled.seconds,
                mebibytes=settled.mebibytes,
            )
        self._append(event)
        return True

    def _proceed(self, action: Propose | Advance | Proceed) -> None:
        match action:
            case Propose():
                self._append(next_candidate(self.state, self._arena))
            case Advance():
                self._append(next_rung(self.state, self._arena, kept(self.state)))
            case Proceed(to="look"):
                look = len(self.state.findings)
                self._append(Looked(look=look, findings=analyse(self.state, look)))
            case Proceed(to="decision"):
                verdicts = final_verdicts(self.state)
                self._append(Decided(branch=decision(self.state), verdicts=verdicts))
            case Proceed(to="report"):
                self._append(Reported(files=self._write_report()))

    def _write_report(self) -> dict[str, str]:
        if self.directory is None:
            return {}
        report = compile_report(self.ledger.rows)
        folder = self.directory / REPORT
        try:
            for name, content in report.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content.encode(), mode=0o644)
        except OSError as error:
            kind = StoreFullError if error.errno in FULL_DISK else StoreError
            raise kind(
                f"Cannot write the report to {folder}: {error}. Run the same command again: no "
                "result is lost."
            ) from error
        return report.hashes

    def _check_measured_limits(self) -> None:
        """Stop if the time or the disk of the study is used up."""
        budget = self.state.budget
        if self.state.over or self.state.held or self.state.decided is not None:
            return
        hours = self._wall() / 3600
        if hours > budget.wall_hours:
            self._append(Exhausted(resource="wall_hours", used=hours, limit=budget.wall_hours))
        elif (used := self._mebibytes()) > budget.disk_mib:
            self._append(Exhausted(resource="disk_mib", used=used, limit=budget.disk_mib))

    def _wall(self) -> float:
        """Return the seconds in which leaders were at work, until now."""
        if self.state.held:
            return self.state.wall
        return self.state.wall + self._elapsed() - self.ledger.rows[-1].elapsed

    def _mebibytes(self) -> float:
        return used_mebibytes(self.directory) if self.directory is not None else 0.0

    def _elapsed(self) -> float:
        return round(self.clock.monotonic() - self._began, 3)

    def _append(self, event: AnyEvent) -> None:
        now, monotonic = self.clock.now(), self.clock.monotonic()
        if self._last is not None:
            jump = (now - self._last[0]).total_seconds() - (monotonic - self._last[1])
            if abs(jump) > _JUMP:
                self._last = (now, monotonic)
                self._append(ClockJumped(seconds=round(jump, 3)))
        self._last = (now, monotonic)
        row = self.ledger.append(
            event, time=now.isoformat(timespec="seconds"), elapsed=self._elapsed()
        )
        self.state.apply(row)
        if self.on_event is not None:
            self.on_event(event)


def registered_event(
    registration: Registration, earlier: Sequence[EarlierStudy] = ()
) -> Registered:
    """Return the first row of a study's ledger."""
    import numpy as np

    study = registration.study
    arena = load_arena(study.base.arena)
    return Registered(
        study=study.model_dump(mode="json", by_alias=True),
        digest=study.digest(),
        blueprints=list(registration.blueprints.values()),
        arms=registration.arms,
        metrics={
            name: KnownMetric(direction=metric.direction, worst=metric.worst)
            for name, metric in arena.metrics.items()
        },
        versions={
            "agentjet": ajet_core.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        warnings=list(registration.warnings),
        directory=str(registration.directory.resolve()) if study.code else "",
        files=dict(registration.files),
        earlier=list(earlier),
    )


def run_study(
    source: Path,
    directory: Path,
    *,
    parallel: int = 1,
    clock: StudyClock | None = None,
    on_event: Callable[[AnyEvent], None] | None = None,
    runner: Callable[[Path, Arena], TrialRunner] = LocalRunner,
    base: Path | None = None,
    files: Mapping[str, str] | None = None,
) -> StudyState:
    """Start a study, resume it, or return the state of a finished one.

    :param source: the study file. It may be missing once the study is registered.
    :param directory: all of the study's state; it is created if it does not exist.
    :param runner: makes what runs the trials, from their directory and the arena.
    :param base: where relative paths of the study start; by default, where `source` is.
    :param files: by path, the code of arms; by default it is read from its files.
    :raises ConfigError: the study is invalid or refused, or it or its code is not the one that is
        registered.
    :raises BusyError: another leader has the directory.
    :raises DamagedRecordError: the ledger is damaged; nothing was changed.
    :raises StoreError: the directory cannot be written.
    """
    path = directory / LEDGER
    rows = list(read_ledger(path)) if path.exists() else []
    registered = fold(rows)
    registration = None
    if registered.study is None:
        text = study_text(source)
        study = parse_study(text, str(source))
        registration = register(study, base or source.resolve().parent, files=files)
        check_machine(registration)
    elif source.is_file():
        _check_same(parse_study(study_text(source), str(source)), registered, source)
    if registered.reported is not None:
        return registered
    if registered.study is not None:
        own = base is None and source.resolve().parent == directory.resolve()
        its_base = None if own else base or source.resolve().parent
        _check_code(rows, its_base)
        if files is None and its_base is not None:
            _check_arms(rows, its_base)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with held(directory), closing(StudyLedger(path)) as ledger:
            clock = clock or MachineClock()
            if registration is not None and not ledger.rows:
                name = "study.json" if source.suffix == ".json" else "study.toml"
                write_whole(directory / name, text.encode(), mode=0o644)
                now = clock.now().isoformat(timespec="seconds")
                first = registered_event(registration, earlier_studies(directory))
                ledger.append(first, time=now, elapsed=0.0)
            study = fold(ledger.rows).registered
            trials = runner(directory / TRIALS, load_arena(study.base.arena))
            return StudyLeader(ledger, trials, directory, clock, parallel, on_event).lead()
    except OSError as error:
        raise StoreError(
            f"Cannot write in {directory}: {error.strerror}. Run the same command again once this "
            "is possible."
        ) from error


def check_machine(registration: Registration) -> None:
    """Refuse a study whose trials cannot run here: all of them would be lost."""
    if (search := registration.study.search) is not None:
        check_sampler(search)
    arena = load_arena(registration.study.base.arena)
    settings = {
        arm: registration.blueprints[id_].settings for id_, arm in registration.arms.items()
    }
    for arm, arm_settings in {**settings, **registration.searched}.items():
        try:
            arena.check_machine(arm_settings)
        except AjetError as error:
            raise ConfigError(f"The arm {arm} cannot run here: {error.message}") from error


def _check_code(rows: Sequence[LedgerRow], base: Path | None) -> None:
    """Refuse to continue with other code than that of the trials so far.

    :param base: where the path of the code starts; None if the registered directory is meant.
    """
    first = rows[0].event
    assert isinstance(first, Registered)
    study = Study.model_validate(first.study)
    if study.code is None:
        return
    (registered,) = {one.code for one in first.blueprints}
    if code_of(study, base or Path(first.directory)) != registered:
        raise ConfigError(
            f"The code in {study.code.path} is not the one that is registered. Check out the "
            f"version with the tree {registered}, or run the study in another directory with --dir."
        )


def _check_arms(rows: Sequence[LedgerRow], base: Path) -> None:
    """Refuse to continue if the code of an arm is not the registered one."""
    first = rows[0].event
    assert isinstance(first, Registered)
    if changed := changed_code(base, first.files):
        raise ConfigError(
            f"The code of arms in {base} is not the one that is registered: {', '.join(changed)}. "
            "Restore it, or run the study in another directory with --dir."
        )


def _check_same(study: Study, registered: StudyState, source: Path) -> None:
    if study.digest() == registered.digest:
        return
    old = registered.registered.model_dump(mode="json", by_alias=True)
    new = study.model_dump(mode="json", by_alias=True)
    both = old.keys() | new.keys()
    changed = ", ".join(sorted(key for key in both if new.get(key) != old.get(key)))
    raise ConfigError(
        f"{source} is not the study that is registered there: it differs in {changed}. A "
        "registered study does not change. Restore the file, or run it in another directory with "
        "--dir. Limits of its budget can be raised with: ajet research amend"
    )
