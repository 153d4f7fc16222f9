"""People steer a study that runs, and nothing that was registered changes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError, StateError
from ajet_research.actions import Ask, Hold, Proceed, Reserve, Stop, actions
from ajet_research.analysis import final_verdicts
from ajet_research.events import (
    Amended,
    Answered,
    AnyEvent,
    AnyRequest,
    Exhausted,
    Looked,
    Paused,
    Reserved,
    Resumed,
    Stopped,
)
from ajet_research.leader import StudyLeader, run_study
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.replicating import replicate_study
from ajet_research.report import compile_report, unlinked_numerals
from ajet_research.runners import FileRunner
from ajet_research.state import StudyState, fold
from ajet_research.status import study_status
from ajet_research.steering import REQUESTED, Steered, held, leader_of, new_request, steer
from ajet_research.study import parse_study
from ajet_research.suites.mutations import _signed
from ajet_research.verifying import verify_study
from tests.research.studies import TEXT, study, written
from tests.research.test_leader import (
    Clock,
    KilledError,
    Runner,
    led,
    new_ledger,
    not_called_for,
)
from tests.support.tiers import examples

QUESTION = """
[[ask]]
id = "second-look"
before_look = 2
question = "Are the seeds of the second look worth their cost?"
default = "yes"
deadline_hours = 12
"""
# Nothing is decided at its first look.
OPEN = TEXT.replace('world = "clear"', 'world = "medium"').replace("smallest = 0.2", "smallest = 1")


@dataclass
class Person:
    """Acts when the leader has written a row, or waits: by number of rows or of waits."""

    directory: Path
    after_rows: dict[int, AnyRequest] = field(default_factory=dict)
    after_waits: dict[int, AnyRequest] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    rows: int = 1
    waits: int = 0

    def __post_init__(self) -> None:
        passes = self.clock.pause

        def pause(seconds: float) -> None:
            passes(seconds)
            self.waits += 1
            assert self.waits < 500, "the study hangs"
            self.act(self.after_waits, self.waits)

        self.clock.pause = pause  # type: ignore[method-assign]

    def saw(self, event: AnyEvent) -> None:
        self.rows += 1
        self.act(self.after_rows, self.rows)

    def act(self, plan: dict[int, AnyRequest], at: int) -> None:
        if at in plan:
            # This process has the lock, so that the request stays for the leader.
            done = steer(self.directory, plan.pop(at), patience=0)
            assert done == Steered(taken=False, led=True)

    def run(self, source: Path) -> StudyState:
        return run_study(
            source, self.directory, clock=self.clock, on_event=self.saw, runner=FileRunner
        )


def events(directory: Path) -> list[AnyEvent]:
    return [row.event for row in read_ledger(directory / LEDGER)]


def results(directory: Path) -> dict[str, bytes]:
    """The files of the report that depend on outcomes alone."""
    files = {path.name: path.read_bytes() for path in (directory / "report").iterdir()}
    return {name: files[name] for name in files if not name.startswith("record")}


def asked(kind: str, **content: Any) -> AnyRequest:
    return new_request(kind, by="ada", why=content.pop("why", "to look at the machine"), **content)


def test_a_pause_delays_a_study_and_changes_no_result(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    person = Person(directory, {8: asked("paused")}, {40: asked("resumed")})
    person.run(source)
    kinds = [event.kind for event in events(directory)]
    paused = kinds.index("paused")
    assert kinds[paused + 1] == "resumed"
    # Beside the other, it would list it.
    run_study(source, tmp_path / "beside" / "calm", runner=FileRunner)
    assert results(directory) == results(tmp_path / "beside" / "calm")
    assert verify_study(directory).problems == []
    assert "ada: the study was paused" in (directory / "report" / "record.md").read_text()


def test_the_time_of_a_pause_is_not_work(tmp_path: Path) -> None:
    source = written(tmp_path, TEXT + "wall_hours = 0.01\n")
    person = Person(tmp_path / "study", {8: asked("paused")}, {400: asked("resumed")})
    state = person.run(source)
    assert person.clock.seconds > 100 > 36 > state.wall
    assert state.exhausted is None


def test_a_stopped_study_is_undecided_and_its_report_has_who_and_why(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    state = Person(directory, {9: asked("stopped", why="The 2 GPUs are <b>needed</b>.")}).run(
        source
    )
    assert final_verdicts(state) == {"b-vs-a": "undecided"}
    kinds = [one.kind for one in events(directory)]
    assert kinds[kinds.index("stopped") :] == ["stopped", "decided", "reported"]
    result = verify_study(directory)
    assert result.problems == []
    (line,) = result.amendments
    assert "ada: the study was stopped; outcomes hidden" in line
    page = (directory / "report" / "report.html").read_text()
    assert "No look was taken: a person ended the study before." in page
    assert "The 2 GPUs are &lt;b&gt;needed&lt;/b&gt;." in page
    assert "Trials that were not run: " in page
    assert unlinked_numerals(page)[0] == []


def test_a_stop_ends_a_pause(tmp_path: Path) -> None:
    person = Person(tmp_path / "study", {8: asked("paused")}, {3: asked("stopped")})
    assert person.run(written(tmp_path)).reported is not None
    assert verify_study(tmp_path / "study").problems == []


def test_a_budget_that_grows_in_time_lets_the_study_reach_its_look(tmp_path: Path) -> None:
    short = study(budget__compute_hours=17 * 30 / 3600)

    def lost(blueprint: Any, attempt: int) -> bool:
        return attempt < 3

    assert led(short, Runner(lost)).state.findings == []
    ledger = new_ledger(short)
    leader = StudyLeader(ledger, Runner(lost), None, Clock())
    more = asked("amended", budget={"compute_hours": 1.0})

    def amend(event: AnyEvent) -> None:
        if len(ledger.rows) == 12:
            leader._append(more)

    leader.on_event = amend
    state = leader.lead()
    assert state.verdicts == led(study()).state.verdicts
    assert state.registered.budget.compute_hours < 1 == state.budget.compute_hours
    assert not_called_for(ledger) == []
    # What only the amendment allows is refused without it.
    forged = StudyLedger(None)
    for row in ledger.rows:
        if not isinstance(row.event, Amended):
            forged.append(row.event, time=row.time, elapsed=row.elapsed)
    assert not_called_for(forged) != []


def test_an_amendment_is_marked_with_whether_outcomes_were_open(tmp_path: Path) -> None:
    source, directory = written(tmp_path, OPEN), tmp_path / "study"
    before = asked("amended", budget={"compute_hours": 2, "attempts": 4}, why="slow disk")
    after = asked("amended", budget={"compute_hours": 3})
    run_study(source, tmp_path / "calm", runner=FileRunner)
    kinds = [event.kind for event in events(tmp_path / "calm")]
    person = Person(directory, {5: before, kinds.index("looked") + 2: after})
    state = person.run(source)
    assert [one.looks for one in state.steered] == [0, 1]
    assert (state.budget.compute_hours, state.budget.attempts) == (3, 4)
    result = verify_study(directory)
    assert result.problems == []
    assert result.amendments[0].endswith(
        "budget.attempts: 3 -> 4, budget.compute_hours: 1 -> 2; outcomes hidden: slow disk"
    )
    assert "budget.compute_hours: 2 -> 3; outcomes open, after look 1" in result.amendments[1]
    report = (directory / "report" / "report.md").read_text()
    assert "Amendments: [budget.attempts: 3 -\\> 4" in report
    assert "Amendments: none" in (tmp_path / "calm" / "report" / "report.md").read_text()
    assert final_verdicts(state) == final_verdicts(fold(read_ledger(tmp_path / "calm" / LEDGER)))


def test_an_amendment_reopens_what_a_full_disk_budget_had_ended() -> None:
    ledger = new_ledger(study())
    leader = StudyLeader(ledger, Runner(), None, Clock())
    leader._append(Reserved(trial=next(iter(leader.state.trials)), attempt=1, seconds=30))
    leader._append(Exhausted(resource="disk_mib", used=1025.0, limit=1024.0))
    assert not any(isinstance(one, Reserve) for one in actions(leader.state))
    leader._append(asked("amended", budget={"disk_mib": 4096}))
    assert any(isinstance(one, Reserve) for one in actions(leader.state))
    assert leader.lead().findings


def test_limits_of_researchers_grow_if_the_study_has_them(tmp_path: Path) -> None:
    directory = begun(tmp_path, TEXT + "researcher_tokens = 1000\n")
    steer(directory, asked("amended", budget={"researcher_tokens": 3000}))
    state = fold(read_ledger(directory / LEDGER))
    assert state.budget.researcher_tokens == 3000
    spent = {one.name: one.limit for one in study_status(directory).budget}
    assert spent["researcher_tokens"] == 3000
    with pytest.raises(StateError, match="'researcher_money' cannot be amended"):
        steer(directory, asked("amended", budget={"researcher_money": 1}))


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"inference.alpha": 0.1}, "'inference.alpha' cannot be amended: only these limits can"),
        ({"trial_seconds": 60}, "'trial_seconds' cannot be amended: only these limits can grow"),
        ({"compute_hours": 0.5}, "budget.compute_hours is 1, and an amendment can only raise it"),
        ({"compute_hours": 1}, "budget.compute_hours is 1, and an amendment can only raise it"),
        ({"compute_hours": float("nan")}, "an amendment can only raise it"),
        ({"compute_hours": float("inf")}, "The budget cannot have budget.compute_hours = inf"),
        ({"trials": 20.5}, "The budget cannot have budget.trials = 20.5"),
        ({"attempts": 99}, "The budget cannot have budget.attempts = 99"),
        ({}, "An amendment has a new limit and its reason"),
    ],
)
def test_a_wrong_amendment_is_refused_in_one_line(
    tmp_path: Path, budget: dict[str, float], message: str
) -> None:
    directory = begun(tmp_path)
    before = (directory / LEDGER).read_bytes()
    with pytest.raises((StateError, ConfigError)) as raised:
        steer(directory, asked("amended", budget=budget))
    assert message in str(raised.value) or "finite" in str(raised.value)
    assert "\n" not in str(raised.value)
    if "only these limits" in message:
        for name in ("attempts", "compute_hours", "disk_mib", "trials", "wall_hours"):
            assert f"budget.{name}" in str(raised.value)
    assert (directory / LEDGER).read_bytes() == before


def test_a_stop_needs_its_reason(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="with a reason"):
        steer(begun(tmp_path), asked("stopped", why=""))


def test_an_amendment_needs_its_reason(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="its reason"):
        steer(begun(tmp_path), asked("amended", budget={"compute_hours": 2}, why=" \n"))


def begun(tmp_path: Path, text: str = TEXT, rows: int = 5) -> Path:
    """The directory of a study whose leader was killed."""
    directory = tmp_path / "study"

    def die(event: AnyEvent) -> None:
        if len(events(directory)) == rows:
            raise KilledError

    with pytest.raises(KilledError):
        run_study(written(tmp_path, text), directory, on_event=die, runner=FileRunner)
    return directory


def test_without_a_leader_a_command_writes_its_row_itself(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    assert steer(directory, asked("paused")) == Steered(taken=True, led=False)
    assert isinstance(events(directory)[-1], Paused)
    assert leader_of(directory) == ""
    with pytest.raises(StateError, match="The study is paused since 20"):
        steer(directory, asked("paused"))
    steer(directory, asked("resumed"))
    with pytest.raises(StateError, match="The study is not paused"):
        steer(directory, asked("resumed"))
    run_study(tmp_path / "study.toml", directory, runner=FileRunner)
    assert verify_study(directory).problems == []


def test_a_request_left_by_a_killed_command_is_taken_once_and_first(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    with held(directory):
        assert not steer(directory, asked("paused"), patience=0).taken
    (file,) = (directory / REQUESTED).iterdir()
    content = file.read_bytes()
    steer(directory, asked("resumed"))
    assert [one.kind for one in events(directory)[-2:]] == ["paused", "resumed"]
    # The process that wrote the row was killed before it removed the file.
    file.write_bytes(content)
    (directory / REQUESTED / "0-foreign.json").write_text('{"kind": "registered"}')
    run_study(tmp_path / "study.toml", directory, runner=FileRunner)
    assert sum(isinstance(one, Paused) for one in events(directory)) == 1
    assert list((directory / REQUESTED).iterdir()) == []
    assert verify_study(directory).problems == []


def test_what_the_study_has_outrun_is_refused(tmp_path: Path) -> None:
    source, directory = written(tmp_path), tmp_path / "study"
    run_study(source, directory, runner=FileRunner)
    with pytest.raises(StateError, match="has its decision"):
        steer(directory, asked("stopped"))
    with pytest.raises(ConfigError, match="There is no study in"):
        steer(tmp_path, asked("stopped"))


@given(st.sets(st.integers(0, 60), max_size=8), st.integers(2, 30), st.integers(2, 30))
@settings(deadline=None, max_examples=examples(20))
def test_leaders_that_are_killed_keep_every_request_once(
    kill_at: set[int], pause_at: int, amend_at: int
) -> None:
    ledger, runner = new_ledger(study()), Runner(kill_at=kill_at)
    plan = {pause_at: asked("paused"), amend_at: asked("amended", budget={"compute_hours": 9})}
    wanted = set()
    while fold(ledger.rows).reported is None:
        leader = StudyLeader(ledger, runner, None, HourlyClock())

        def act(event: AnyEvent, leader: StudyLeader = leader) -> None:
            state = leader.state
            request = plan.pop(len(ledger.rows), None)
            if request is not None and not state.refusal(request):
                wanted.add(request.request)
                leader._append(request.model_copy(update={"looks": len(state.findings)}))
            # Also by the leader after one that was killed in the pause.
            elif leader.state.paused is not None:
                leader._append(asked("resumed").model_copy(update={"looks": len(state.findings)}))

        leader.on_event = act
        try:
            leader.lead()
        except KilledError:
            continue
    rows = [row.event for row in ledger.rows]
    taken = [one.request for one in rows if isinstance(one, Paused | Amended)]
    assert sorted(taken) == sorted(wanted)
    assert not_called_for(ledger) == []


class HourlyClock(Clock):
    """A clock on which each wait takes an hour."""

    def pause(self, seconds: float) -> None:
        super().pause(3600.0)
        assert self.pauses < 100, "the study hangs"


def answers(directory: Path) -> list[Answered]:
    return [one for one in events(directory) if isinstance(one, Answered)]


def test_a_question_waits_for_its_deadline_and_takes_its_default(tmp_path: Path) -> None:
    source, directory = written(tmp_path, OPEN + QUESTION), tmp_path / "study"
    clock = HourlyClock()
    state = run_study(source, directory, clock=clock, runner=FileRunner)
    (answer,) = answers(directory)
    assert (answer.answer, answer.default, answer.looks) == ("yes", True, 1)
    assert 12 * 3600 <= clock.seconds < 13 * 3600 + 60
    assert len(state.findings) == 2
    assert state.wall < 3600
    result = verify_study(directory)
    assert result.problems == []
    assert (
        "the registered default: the question second-look was answered with yes"
        in (result.amendments[0])
    )


@pytest.mark.parametrize(("answer", "looks"), [("yes", 2), ("no", 1)])
def test_a_person_answers_a_question(tmp_path: Path, answer: str, looks: int) -> None:
    source, directory = written(tmp_path, OPEN + QUESTION), tmp_path / "study"
    person = Person(directory)
    # The request is dated by this machine's clock.
    person.clock.wall = new_request("paused", by="x").at
    person.after_waits[3] = asked("answered", question="second-look", answer=answer)
    state = person.run(source)
    assert len(state.findings) == looks
    assert verify_study(directory).problems == []
    report = (directory / "report" / "report.md").read_text()
    assert f"ada: the question second-look was answered with {answer}" in report
    assert ("open comparisons stay undecided" in report) == (answer == "no")


def test_nothing_starts_while_a_question_is_open(tmp_path: Path) -> None:
    early = QUESTION.replace("before_look = 2", "before_look = 1")
    directory = begun(tmp_path, TEXT + early, rows=3)
    state = fold(read_ledger(directory / LEDGER))
    assert actions(state) == [Hold("second-look")]
    assert not any(isinstance(one, Reserved) for one in events(directory))
    status = study_status(directory)
    assert status.phase == "asking"
    assert status.open_question is not None
    assert status.open_question.default == "yes"
    with pytest.raises(StateError, match="no open question 'other': the open one is 'second-look'"):
        steer(directory, asked("answered", question="other", answer="yes"))
    with pytest.raises(ConfigError, match="Input should be 'yes' or 'no'"):
        asked("answered", question="second-look", answer="maybe")
    late = asked("answered", question="second-look", answer="no")
    late = late.model_copy(update={"at": late.at + timedelta(hours=13)})
    with pytest.raises(StateError, match=r"The deadline of 'second-look' was .* default applies"):
        steer(directory, late)
    steer(directory, asked("answered", question="second-look", answer="no"))
    state = run_study(tmp_path / "study.toml", directory, runner=FileRunner)
    assert state.findings == []
    assert verify_study(directory).problems == []


def test_a_question_is_not_asked_when_nothing_is_left_to_compare(tmp_path: Path) -> None:
    text = TEXT.replace("smallest = 0.2", "smallest = 0.01") + QUESTION
    text = text.replace('world = "clear"', 'world = "plateau"')
    directory = tmp_path / "study"
    state = run_study(written(tmp_path, text), directory, runner=FileRunner)
    assert len(state.findings) == 1
    assert not any(one.kind == "asked" for one in events(directory))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("before_look = 2", "before_look = 3", "'before_look' is 3, and the study has 2 looks"),
        ('default = "yes"', 'default = "perhaps"', "Input should be 'yes' or 'no'"),
        ("deadline_hours = 12\n", "", "lacks 'deadline_hours'"),
        ("deadline_hours = 12\n", f"deadline_hours = 12\n{QUESTION}", "two questions have the id"),
    ],
)
def test_a_wrong_question_is_named_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"study\.toml, line \d+: ") as raised:
        parse_study(TEXT + QUESTION.replace(old, new), "study.toml")
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study that was paused, amended, and asked its question."""
    folder = tmp_path_factory.mktemp("steered")
    person = Person(folder / "study", {6: asked("amended", budget={"compute_hours": 2})})
    person.clock.wall = new_request("paused", by="x").at
    person.after_rows[8] = asked("paused")
    person.after_waits = {3: asked("resumed")}
    person.after_waits[6] = asked("answered", question="second-look", answer="yes")
    assert len(person.run(written(folder, OPEN + QUESTION)).steered) == 4
    assert verify_study(folder / "study").problems == []
    return folder / "study"


def change(kind: str, **values: Any) -> Callable[[list[dict[str, Any]], random.Random], None]:
    def forge(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
        next(body for body in bodies if body["kind"] == kind).update(values)

    return forge


def drop(kind: str) -> Callable[[list[dict[str, Any]], random.Random], None]:
    def forge(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
        bodies.remove(next(body for body in bodies if body["kind"] == kind))

    return forge


FORGED = {
    "limit lowered": change("amended", budget={"compute_hours": 0.5}),
    "another part amended": change("amended", budget={"trial_seconds": 60}),
    "said to be before the look": change("answered", looks=0),
    "answered in time by a default": change("answered", default=True, by="", request=""),
    "answered with no": change("answered", answer="no"),
    "answered too late": change("answered", at="2031-01-01T00:00:00Z"),
    "request counted twice": change("resumed", request=""),
    "no author": change("paused", by=""),
    "question dropped": drop("asked"),
    "answer dropped": drop("answered"),
    "pause dropped": drop("paused"),
    "resumption dropped": drop("resumed"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_act_is_caught(steered: Path, tmp_path: Path, name: str) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(steered, forged)
    _signed(FORGED[name])(forged, random.Random(7))
    assert verify_study(forged).problems


def test_a_replication_may_cost_what_the_amended_study_did(steered: Path, tmp_path: Path) -> None:
    replicated = tmp_path / "again"
    with pytest.raises(KilledError):
        replicate_study(steered, replicated, on_event=_die, runner=FileRunner)
    assert fold(read_ledger(replicated / LEDGER)).registered.budget.compute_hours == 2


def _die(event: AnyEvent) -> None:
    raise KilledError


def test_reports_of_steered_studies_link_every_numeral(steered: Path) -> None:
    files = compile_report(read_ledger(steered / LEDGER)).files
    for page in ("report.html", "record.html"):
        assert unlinked_numerals(files[page])[0] == []
    assert '"outcomes open, after look 1"' in files["report.json"]
    for act in ("paused", "resumed", "second-look opened until", "answered with yes"):
        assert act in files["record.md"]


def test_what_is_shown_of_a_running_study_has_no_outcome(tmp_path: Path) -> None:
    directory = begun(tmp_path, rows=16)
    steer(directory, asked("paused"))
    status = study_status(directory)
    assert (status.phase, status.looks, status.verdicts) == ("paused", 0, {})
    assert status.paused.endswith("by ada: to look at the machine")
    assert {one.arm for one in status.arms} == {'method="a"', 'method="b"'}
    assert sum(one.done for one in status.arms) == status.trials["finished"] > 4
    assert sum(one.left for one in status.arms) == status.trials["planned"]
    spent = {one.name: one for one in status.budget}
    assert 0 < spent["trials"].used < spent["trials"].limit == 20
    assert len(status.events) == 12
    values = [
        repr(value)
        for event in events(directory)
        if event.kind == "finished"
        for value in event.metrics.values()
    ]
    assert values
    assert not [value for value in values if value in repr(status)]


def test_actions_of_a_held_study_wait_for_a_person() -> None:
    leader = led(study(ask=[]))
    rows = [row for row in leader.ledger.rows if row.event.kind in ("registered", "leader_started")]
    state = fold(rows)
    state.paused = Paused(request="1", by="ada", at=Clock().wall, why="")
    assert actions(state) == [Hold("")]
    state.ended = Stopped(request="2", by="ada", at=Clock().wall, why="")
    assert actions(state) == [Proceed("decision")]
    state.ended = state.paused = None
    assert all(isinstance(one, Reserve) for one in actions(state))
    its = study(ask=[parse_study(TEXT + QUESTION, "x.toml").ask[0].model_dump()])
    state.study = its.model_copy(update={"ask": [its.ask[0].model_copy(update={"before_look": 1})]})
    assert actions(state) == [Ask("second-look")]
    assert not isinstance(actions(state)[0], Stop | Resumed | Looked)
