"""The leader: from any moment on, the same rows lead to the same end."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import BusyError, ConfigError, StoreError, StoreFullError
from ajet_research.actions import Await, Proceed, Reserve, Stop, actions, needed_now
from ajet_research.analysis import final_verdicts, outcomes
from ajet_research.arenas import TrialBlueprint
from ajet_research.events import (
    AttemptFailed,
    ClockJumped,
    Exhausted,
    LeaderStarted,
    Lost,
    Paused,
    Reserved,
    Resumed,
)
from ajet_research.leader import StudyLeader, registered_event, run_study
from ajet_research.ledger import LEDGER, StudyLedger
from ajet_research.registration import register
from ajet_research.report import compile_report, unlinked_numerals
from ajet_research.runners import FileRunner, InlineRunner, Settled, TrialRunner
from ajet_research.state import StudyState, fold
from ajet_research.steering import held
from ajet_research.study import Study
from ajet_research.verifying import _out_of_order
from tests.research.studies import TEXT, study, written
from tests.support.tiers import examples


@dataclass
class Clock:
    """A clock that advances by itself, and can be moved."""

    wall: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    seconds: float = 0.0
    pauses: int = 0

    def now(self) -> datetime:
        return self.wall + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        self.seconds += 0.01
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        self.pauses += 1


class KilledError(Exception):
    """Stands for the death of the leader."""


@dataclass
class Runner(TrialRunner):
    """Runs trials inline, some of which fail, and dies or has an error at chosen calls."""

    lost: Callable[[TrialBlueprint, int], bool] = lambda blueprint, attempt: False
    kill_at: set[int] = field(default_factory=set)
    errors: dict[int, OSError] = field(default_factory=dict)
    calls: Iterator[int] = field(default_factory=itertools.count)
    inner: InlineRunner = field(default_factory=InlineRunner)

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        call = next(self.calls)
        if call in self.kill_at:
            raise KilledError
        if call in self.errors:
            raise self.errors[call]
        if self.lost(blueprint, attempt):
            return Settled(blueprint.seconds, cause="the worker was lost")
        return self.inner.poll(blueprint, attempt)


def new_ledger(its: Study) -> StudyLedger:
    ledger = StudyLedger(None)
    event = registered_event(register(its, Path()))
    ledger.append(event, time="2026-01-01T00:00:00+00:00", elapsed=0.0)
    return ledger


def led(its: Study, runner: Runner | None = None, **options: object) -> StudyLeader:
    leader = StudyLeader(new_ledger(its), runner or Runner(), None, Clock(), **options)  # type: ignore[arg-type]
    leader.lead()
    return leader


def verdict(world: str, **changes: object) -> tuple[str, str]:
    """The verdict in a planted world, and its reason."""
    changes.setdefault("base__set", {"world": world, "steps": 2})
    finding = led(study(**changes)).state.verdicts["b-vs-a"]
    return finding.verdict, finding.reason


def test_a_clear_effect_is_found() -> None:
    looks = [{"seeds": 8, "alpha": 0.0125}, {"seeds": 16, "alpha": 0.0375}]
    assert verdict("clear", inference__looks=looks, budget__trials=40) == ("better", "")


def test_less_is_better_for_a_metric_to_minimise() -> None:
    looks = [{"seeds": 16, "alpha": 0.05}]
    changes = {"inference__looks": looks, "budget__trials": 40}
    assert verdict("clear", outcome__metric="loss", **changes) == ("better", "")


def test_a_proxy_that_rises_does_not_hide_that_the_outcome_falls() -> None:
    looks = [{"seeds": 16, "alpha": 0.05}]
    changes = {"inference__looks": looks, "budget__trials": 40}
    assert verdict("proxy", outcome__metric="train_reward", **changes)[0] != "worse"
    assert verdict("proxy", **changes) == ("worse", "")


def test_arms_whose_seed_has_no_effect_are_invalid() -> None:
    got, reason = verdict("seedless")
    assert got == "invalid"
    assert "the seed has no effect" in reason


def test_a_guardrail_that_is_not_shown_to_hold_vetoes() -> None:
    guardrails = [{"metric": "far_score", "margin": 0.5}]
    looks = [{"seeds": 16, "alpha": 0.05}]
    changes = {"inference__looks": looks, "budget__trials": 40}
    assert verdict("slice", **changes)[0] == "better"
    got, reason = verdict("slice", outcome__guardrails=guardrails, **changes)
    assert (got, reason) == ("undecided", "a guardrail is not shown to hold: far_score")


def test_crashed_trials_count_with_the_worst_outcome() -> None:
    leader = led(study(base__set={"world": "survivors", "steps": 2}))
    failed = [
        one.outcome for one in leader.state.trials.values() if one.outcome and one.outcome.failed
    ]
    assert failed
    finding = leader.state.verdicts["b-vs-a"]
    assert finding.missing == []
    # Survivors alone are better.
    assert finding.gain is not None
    assert finding.gain < 0


def test_the_xor_of_two_factors_is_found_only_with_both() -> None:
    both = {"method": {"path": "method", "levels": ["a", "b"]}}
    both["variant"] = {"path": "variant", "levels": ["a", "b"]}
    base = {"method": "a", "variant": "a"}
    compare = [
        {"id": "both", "arm": {"method": "b", "variant": "b"}, "against": base},
        {"id": "method-alone", "arm": {"method": "b", "variant": "a"}, "against": base},
    ]
    its = study(
        factors=both,
        compare=compare,
        base__set={"world": "xor", "steps": 1},
        inference__looks=[{"seeds": 16, "alpha": 0.05}],
        decide=[{"otherwise": True, "conclude": "See the verdicts."}],
        budget__trials=60,
    )
    assert final_verdicts(led(its).state) == {"both": "better", "method-alone": "worse"}


def test_lost_trials_are_tried_again_and_then_missing() -> None:
    def lost(blueprint: TrialBlueprint, attempt: int) -> bool:
        return blueprint.seed == 3

    leader = led(study(), Runner(lost))
    kinds = [type(row.event) for row in leader.ledger.rows]
    assert kinds.count(AttemptFailed) == 2 * 3
    assert kinds.count(Lost) == 2
    finding = leader.state.verdicts["b-vs-a"]
    # One of eight pairs is more than a tenth.
    assert (finding.verdict, finding.missing) == ("invalid", [3])
    files = compile_report(leader.ledger.rows).files
    assert files["record.md"].count(": the worker was lost](#row-") == 6
    (line,) = [one for one in files["report.md"].splitlines() if "lost with the machine" in one]
    gone = [row.event.trial for row in leader.ledger.rows if isinstance(row.event, Lost)]
    assert [f"[{id_}](#trial-{id_})" in line for id_ in gone] == [True, True]


@dataclass
class QueueRunner(Runner):
    """A runner whose first attempt waits in a queue."""

    withdrawn: list[bool] = field(default_factory=list)

    def withdraw(self, blueprint: TrialBlueprint, attempt: int, *, final: bool) -> bool:
        self.withdrawn.append(final)
        return not final


def steered(event: type[Paused | Resumed]) -> Paused | Resumed:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return event(request=event.__name__, by="someone", at=at, why="")


def test_an_attempt_that_waits_is_withdrawn_in_a_pause_and_is_the_same_after_it() -> None:
    ledger, runner, clock = new_ledger(study()), QueueRunner(), Clock()
    trial = next(iter(fold(ledger.rows).trials.values())).blueprint
    for event in (
        Reserved(trial=trial.id, attempt=1, seconds=trial.seconds),
        steered(Paused),
    ):
        ledger.append(event, time="2026-01-01T00:00:00+00:00", elapsed=0.0)
    leader = StudyLeader(ledger, runner, None, clock)
    polls = []

    def resume(seconds: float) -> None:
        polls.append(next(runner.calls))
        leader._append(steered(Resumed))

    clock.pause = resume  # type: ignore[method-assign]
    leader.lead()
    assert runner.withdrawn == [False]
    # It was not polled before.
    assert polls == [0]
    assert {one.attempts for one in leader.state.trials.values()} <= {0, 1}
    assert leader.state.decided is not None


def test_a_trial_that_succeeds_at_the_second_attempt_counts_once() -> None:
    calm = led(study())
    retried = led(study(), Runner(lambda blueprint, attempt: attempt == 1))
    assert retried.state.verdicts == calm.state.verdicts
    assert {one.attempts for one in retried.state.trials.values()} <= {0, 2}


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, StoreFullError), (errno.EDQUOT, StoreFullError), (errno.EAGAIN, StoreError)],
)
def test_a_machine_that_runs_no_trial_is_an_error_and_a_rerun_continues(
    code: int, kind: type[StoreError]
) -> None:
    error = OSError(code, os.strerror(code), "trial")
    runner = Runner(errors=dict.fromkeys(range(4, 12), error))
    ledger = new_ledger(study())
    for _ in range(8):
        with pytest.raises(StoreError, match="does not count") as raised:
            StudyLeader(ledger, runner, None, Clock()).lead()
        assert type(raised.value) is kind
        assert isinstance(ledger.rows[-1].event, Reserved | LeaderStarted)
    state = StudyLeader(ledger, runner, None, Clock()).lead()
    assert not [row for row in ledger.rows if isinstance(row.event, AttemptFailed)]
    assert state.verdicts == led(study()).state.verdicts


def not_called_for(ledger: StudyLedger) -> list[str]:
    """The rows that `ajet research verify` would refuse at their place."""
    state = StudyState()
    problems: list[str] = []
    for row in ledger.rows:
        problems += _out_of_order(row, state)
        state.apply(row)
    return problems


@pytest.mark.parametrize("parallel", [1, 4])
def test_rows_are_called_for_though_attempts_fail_beside_others(parallel: int) -> None:
    leader = led(study(), Runner(lambda blueprint, attempt: blueprint.seed < 4), parallel=parallel)
    assert sum(isinstance(row.event, Lost) for row in leader.ledger.rows) >= 6
    assert not_called_for(leader.ledger) == []


def test_a_budget_that_retries_use_up_ends_in_a_decision() -> None:
    its = study(budget__compute_hours=17 * 30 / 3600)
    leader = led(its, Runner(lambda blueprint, attempt: True))
    (stop,) = [row.event for row in leader.ledger.rows if isinstance(row.event, Exhausted)]
    assert stop.resource == "compute_hours"
    assert leader.state.settled <= 17 * 30
    assert final_verdicts(leader.state) == {"b-vs-a": "undecided"}
    assert leader.state.decided is not None


@pytest.mark.parametrize("parallel", [1, 3])
def test_no_attempt_starts_that_could_outlast_the_wall_time(parallel: int) -> None:
    clock = Clock()

    @dataclass
    class Slow(Runner):
        """Attempts take nearly all of their 30 s."""

        ends: dict[str, float] = field(default_factory=dict)

        def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
            end = self.ends.setdefault(blueprint.id, clock.seconds + 29.0)
            return super().poll(blueprint, attempt) if clock.seconds >= end else None

    its = study(budget__wall_hours=100 / 3600)
    leader = StudyLeader(new_ledger(its), Slow(), None, clock, parallel)
    leader.lead()
    stop = leader.state.exhausted
    assert stop is not None
    assert (stop.resource, stop.limit) == ("wall_hours", 100 / 3600)
    assert 70 < stop.used * 3600 <= 100
    assert leader.state.wall <= 100
    assert leader.state.decided is not None
    assert not_called_for(leader.ledger) == []


def test_wall_time_that_is_used_up_ends_in_a_decision() -> None:
    clock = Clock()
    leader = StudyLeader(new_ledger(study(budget__wall_hours=0.01)), Runner(), None, clock)

    def late(_: object) -> None:
        if len(leader.ledger.rows) == 10:
            clock.seconds += 60

    leader.on_event = late
    leader.lead()
    stop = leader.state.exhausted
    assert stop is not None
    assert stop.resource == "wall_hours"
    assert stop.used > stop.limit
    assert leader.state.decided is not None
    assert not_called_for(leader.ledger) == []


@pytest.mark.parametrize("days", [-1, 1, 400])
def test_a_clock_that_jumps_is_a_row_and_a_line_and_changes_no_result(days: int) -> None:
    clock = Clock()
    leader = StudyLeader(new_ledger(study()), Runner(), None, clock)

    def jump(event: object) -> None:
        if len(leader.ledger.rows) == 10:
            clock.wall += timedelta(days=days)

    leader.on_event = jump
    leader.lead()
    (jumped,) = [row for row in leader.ledger.rows if isinstance(row.event, ClockJumped)]
    assert isinstance(jumped.event, ClockJumped)
    assert jumped.event.seconds == pytest.approx(days * 86400, abs=1)
    record = compile_report(leader.ledger.rows).files["record.md"]
    line = f"[the clock moved by {jumped.event.seconds} s before this row](#row-{jumped.seq})"
    assert record.count(line) == 1
    assert leader.state.verdicts == led(study()).state.verdicts
    assert not_called_for(leader.ledger) == []


@given(st.sets(st.integers(0, 80), max_size=12), st.integers(1, 5))
@settings(deadline=None, max_examples=examples(25))
def test_a_leader_that_is_killed_at_any_moment_leaves_the_same_report(
    kill_at: set[int], parallel: int
) -> None:
    ledger, runner = new_ledger(study()), Runner(kill_at=kill_at)
    while fold(ledger.rows).reported is None:
        try:
            StudyLeader(ledger, runner, None, Clock(), parallel).lead()
        except KilledError:
            continue
    calm = compile_report(led(study()).ledger.rows).files
    killed = compile_report(ledger.rows).files
    assert {name for name in calm if calm[name] != killed[name]} <= {"record.md", "record.html"}


@given(st.data())
@settings(deadline=None, max_examples=examples(25))
def test_actions_depend_on_the_state_alone(data: st.DataObject) -> None:
    rows = led(study()).ledger.rows
    cut = data.draw(st.integers(1, len(rows)))
    state = fold(rows[:cut])
    todo = actions(state)
    assert todo == actions(fold(rows[:cut]))
    waiting = [one for one in todo if isinstance(one, Await)]
    assert {one.trial for one in waiting} == {
        id_ for id_, trial in state.trials.items() if trial.status == "reserved"
    }
    assert len(todo) == 1 or all(isinstance(one, Await | Reserve) for one in todo)
    assert (todo == []) == (state.reported is not None)


def test_no_look_is_taken_before_its_trials_have_settled() -> None:
    rows = led(study()).ledger.rows
    for cut in range(1, len(rows)):
        state = fold(rows[:cut])
        if Proceed("look") in actions(state):
            assert needed_now(state) == []
            assert all(trial.status != "reserved" for trial in state.trials.values())


def test_no_trial_is_reserved_beyond_the_budget() -> None:
    state = fold(new_ledger(study()).rows)
    hours = 3 * 30 / 3600
    tight = state.registered.budget.model_copy(update={"compute_hours": hours})
    state.study = state.registered.model_copy(update={"budget": tight})
    assert len(actions(state)) == 3
    state.settled = 2.5 * 30
    assert actions(state) == [Stop("compute_hours", 2.5 * 30 / 3600, hours)]


def test_a_finished_study_is_left_as_it_is(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    run_study(source, directory, runner=FileRunner)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    state = run_study(source, directory, runner=FileRunner)
    assert state.reported is not None
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_finished_study_needs_no_study_file(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    run_study(source, directory, runner=FileRunner)
    source.unlink()
    assert run_study(source, directory).reported is not None


def test_another_study_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    run_study(source, directory, runner=FileRunner)
    written(tmp_path, TEXT.replace("smallest = 0.2", "smallest = 0.1"))
    with pytest.raises(ConfigError, match="is registered there: it differs in outcome"):
        run_study(source, directory)


def test_a_second_leader_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    directory.mkdir()
    with (
        held(directory),
        pytest.raises(BusyError, match=f"led by process {os.getpid()} on this machine"),
    ):
        run_study(source, directory)
    assert not (directory / LEDGER).exists()


def test_a_refused_study_leaves_no_directory(tmp_path: Path) -> None:
    source = written(tmp_path, TEXT.replace("trials = 20", "trials = 2"))
    with pytest.raises(ConfigError, match=r"budget\.trials is 2"):
        run_study(source, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_directory_that_cannot_be_written_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Cannot write in .*: Not a directory"):
        run_study(written(tmp_path), tmp_path / "file" / "study")


def test_a_disk_budget_that_is_used_up_ends_in_a_report(tmp_path: Path) -> None:
    source = written(tmp_path, TEXT + "disk_mib = 0.001\n")
    state = run_study(source, tmp_path / "study", runner=FileRunner)
    assert state.exhausted is not None
    assert state.exhausted.resource == "disk_mib"
    report = (tmp_path / "study" / "report" / "report.md").read_text()
    assert r"The budget was exhausted: disk\_mib." in report


def test_every_numeral_of_every_report_is_linked() -> None:
    worlds = ["clear", "survivors", "seedless", "slice", "heavy", "unrepeatable"]
    total = 0
    for world in worlds:
        guardrails = [{"metric": "far_score", "margin": 0.5}]
        its = study(base__set={"world": world, "steps": 2}, outcome__guardrails=guardrails)
        files = compile_report(led(its).ledger.rows).files
        for page in ("report.html", "record.html"):
            bare, count = unlinked_numerals(files[page])
            assert bare == [], (world, page)
            total += count
    assert total > 1000


def test_a_reason_links_the_trials_that_it_names() -> None:
    leader = led(study(base__set={"world": "seedless", "steps": 2}))
    trials = re.findall(r"[0-9a-f]{12}", leader.state.verdicts["b-vs-a"].reason)
    assert len(trials) == 2
    assert any(character.isdigit() for trial in trials for character in trial)
    files = compile_report(leader.ledger.rows).files
    first, second = (f"[{trial}](#trial-{trial})" for trial in trials)
    assert f"the seed has no effect: trials {first} and {second} of the arm" in files["report.md"]
    for trial in trials:
        assert f'<a href="#trial-{trial}">{trial}</a>' in files["report.html"]
        assert f'id="trial-{trial}"' in files["report.html"]


def test_guardrails_take_their_worst_value_from_a_failed_trial_not_the_registered_outcome() -> None:
    looks = [{"seeds": 16, "alpha": 0.05}]
    changes = {
        "inference__looks": looks,
        "budget__trials": 40,
        "outcome__failed": 0.5,
        "outcome__guardrails": [{"metric": "far_score", "margin": 0.1}],
        "base__set": {"world": "survivors", "steps": 2},
    }
    state = led(study(**changes)).state
    failed = {
        one.blueprint.seed for one in state.trials.values() if one.outcome and one.outcome.failed
    }
    assert failed
    assert {outcomes(state, 'method="b"', "score")[seed] for seed in failed} == {0.5}
    assert {outcomes(state, 'method="b"', "far_score")[seed] for seed in failed} == {-8.0}
