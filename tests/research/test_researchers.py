"""Researchers: of what they say, only what registration and the checks of prose accept counts."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError, DamagedRecordError
from ajet_research.events import ResearcherAnswered, ResearcherAsked
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.registration import register
from ajet_research.researchers import (
    TRANSCRIPTS,
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
    interpret_study,
    propose_study,
)
from ajet_research.researchers.checking import check_here
from ajet_research.researchers.interface import DeclinedError, read_answer
from ajet_research.researchers.proposing import (
    CEILINGS,
    PROPOSAL,
    TopicFile,
    proposal_request,
    read_topic,
)
from ajet_research.researchers.writing import study_toml
from ajet_research.runners import FileRunner
from ajet_research.spending import ResearcherLimits, ResearcherSpending
from ajet_research.state import fold
from ajet_research.status import study_status
from ajet_research.study import parse_study
from ajet_research.suites.mutations import _signed, finished_study
from ajet_research.suites.researching import VirtualClock
from ajet_research.swarm import SwarmArena
from ajet_research.verifying import verify_study
from tests.research.studies import TEXT, written
from tests.support.tiers import examples

GOOD = "{{claim b-vs-a better}}. The difference was {{number b-vs-a.gain}} in the pairs."


class Scripted(Researcher):
    """Gives answers in turn, or raises them; each takes ten tokens of a hundred."""

    name = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    def worst_case(self, request: Request) -> tuple[int, float]:
        return 100, 0.5

    def answer(self, request: Request) -> ResearcherAnswer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return ResearcherAnswer(text, 10, 0.125)


def away(*, temporary: bool = True, unpaid: bool = True) -> ResearcherFailedError:
    return ResearcherFailedError("it is away", temporary=temporary, unpaid=unpaid)


def example(**changes: Any) -> dict[str, Any]:
    """The study that researchers get as an example, with parts replaced."""
    subject = TopicFile("Is b better?", "", {}, CEILINGS, {})
    return {"study": {**proposal_request(subject)["example"], **changes}}


def topic(directory: Path, head: str = "") -> Path:
    path = directory / "topic.md"
    path.write_text(f"{head}Is method b worth its cost?\n", encoding="utf-8")
    return path


def proposed(directory: Path, *answers: Any, head: str = "", **options: Any) -> Any:
    options = {"check": check_here, "clock": VirtualClock(), **options}
    return propose_study(
        topic(directory, head), directory / "study.toml", Scripted(*answers), **options
    )


def events(path: Path) -> list[Any]:
    return [row.event for row in read_ledger(path)]


def test_a_proposal_is_a_study_that_registration_accepts(tmp_path: Path) -> None:
    done = proposed(tmp_path, example())
    text = done.path.read_text(encoding="utf-8")
    assert register(parse_study(text, "study.toml"), tmp_path).study == done.study
    assert done.study.topic.question == "Is method b worth its cost?"
    assert done.study.topic.proposed_by == "scripted"
    assert (done.requests, done.tokens, done.money) == (1, 10, 0.125)
    folder = tmp_path / "study.toml.proposal"
    assert json.loads((folder / TRANSCRIPTS / "001-answer.txt").read_text()) == example()
    assert [one.kind for one in events(folder / PROPOSAL)] == [
        "researcher_asked",
        "researcher_answered",
    ]


def test_refusals_of_registration_reach_the_researcher_line_by_line(tmp_path: Path) -> None:
    late = example(inference={"looks": [{"seeds": 3, "alpha": 0.05}]}, outcome={"metric": "x"})
    researcher = Scripted(late, example())
    propose_study(topic(tmp_path), tmp_path / "study.toml", researcher, check=check_here)
    first, second = researcher.requests
    assert "problems" not in first
    (problem,) = second["problems"]
    assert problem.startswith("study.toml, line 17: outcome lacks 'smallest'; known keys: metric,")
    assert second["previous"].splitlines()[16] == "[outcome]"


def with_code(files: Any, *levels: str) -> dict[str, Any]:
    """A proposal whose arms are code."""
    return example(
        base={"arena": "swarm", "set": {"train_steps": 1}},
        factors={"program": {"path": "agent", "levels": list(levels)}},
        outcome={"metric": "success", "smallest": 0.1},
        compare=[
            {"id": "b-vs-a", "arm": {"program": levels[0]}, "against": {"program": levels[1]}}
        ],
        files=files,
    )


def test_a_researcher_writes_the_code_of_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwarmArena, "check_machine", lambda *_: None)
    proposal = with_code({"arms/first.py": "print(1)\n"}, "code:arms/first.py", "world")
    done = proposed(tmp_path, proposal)
    assert (tmp_path / "arms/first.py").read_text() == "print(1)\n"
    assert register(done.study, tmp_path).files == {"arms/first.py": "print(1)\n"}


@pytest.mark.parametrize(
    ("files", "level", "problem"),
    [
        ([], "code:arms/a.py", "'files' is not an object of texts"),
        ({"arms/a.py": 1}, "code:arms/a.py", "'files' is not an object of texts"),
        ({"arms/../a.py": ""}, "code:arms/a.py", "needs a name such as arms/first.py"),
        ({"conftest.py": ""}, "code:conftest.py", "needs a name such as arms/first.py"),
        ({"arms/conftest.py": ""}, "code:arms/conftest.py", "needs a name such as"),
        ({"arms/test_a.py": ""}, "code:arms/test_a.py", "needs a name such as"),
        ({"arms/a.py": "#" * 40_000}, "code:arms/a.py", "has more than 32768 bytes"),
        ({"arms/mine.py": "print(2)"}, "code:arms/mine.py", "exists, with another content"),
        ({f"arms/a{n}.py": "" for n in range(9)}, "code:arms/a1.py", "at most 8"),
        ({}, "code:arms/mine.py", "There is no code arms/mine.py among the given files"),
    ],
    ids=range(10),
)
def test_files_that_a_researcher_may_not_write_or_name_are_refused(
    files: Any, level: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms/mine.py").write_text("secret = 1")
    with pytest.raises(ResearcherFailedError, match=re.escape(problem)):
        proposed(tmp_path, with_code(files, level, "world"), tries=1)
    assert [path.name for path in (tmp_path / "arms").iterdir()] == ["mine.py"]
    assert (tmp_path / "arms/mine.py").read_text() == "secret = 1"


def test_code_that_a_topic_names_is_that_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwarmArena, "check_machine", lambda *_: None)
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms/mine.py").write_text("print(1)")
    head = '+++\n[factors.program]\npath = "agent"\nlevels = ["code:arms/mine.py", "world"]\n+++\n'
    done = proposed(tmp_path, with_code({}, "code:arms/mine.py", "world"), head=head)
    assert register(done.study, tmp_path).files == {"arms/mine.py": "print(1)"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"budget": {"trials": 10**6}}, "budget.trials is 1000000, and this topic allows at most"),
        ({"budget": {"researcher_tokens": 5}}, "budget.researcher_tokens is not a researcher's"),
        ({"budget": []}, "'budget' is not an object"),
        ({"code": {"path": "/"}}, "'code' is not a researcher's to set"),
        ({"topic": {"question": "Is b good?"}}, 'topic.question is "Is b good?", and this topic'),
        ({"base": {"arena": "nowhere"}}, "Unknown arena 'nowhere'"),
        (
            {"base": {"arena": "swarm", "set": {"engine.name": "other"}}},
            "the setting 'engine.name' is not a researcher's to set",
        ),
        (
            {"decide": [{"otherwise": True, "conclude": "Use b: it is better."}]},
            "The conclusion of decision 1: 'better' compares",
        ),
        ({"compare": [{}] * 21}, "the study has 21 compare; a proposal has at most 20"),
        ({"outcome": {"metric": "score", "smallest": [[[[[[[[[1]]]]]]]]]}}, "nested too deeply"),
        (
            {"inference": {"looks": [{"seeds": 4, "alpha": 0.05}]}},
            "The look after 4 seeds can never show anything",
        ),
    ],
)
def test_what_a_researcher_may_not_propose(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ResearcherFailedError) as failure:
        proposed(tmp_path, example(**changes), tries=1)
    assert "None of 1 answers of the researcher scripted was accepted" in failure.value.message
    assert problem in failure.value.message
    assert not (tmp_path / "study.toml").exists()


def test_the_head_of_a_topic_sets_what_nobody_else_may(tmp_path: Path) -> None:
    head = (
        '+++\n[base]\narena = "synthetic"\n[base.set]\nworld = "clear"\n[budget]\ntrials = 30\n'
        "researcher_tokens = 250\nresearcher_money = 2.0\n"
        'researcher_prices = { "scripted" = { input = 1.0, output = 2.0 } }\n+++\n'
    )
    other = example()
    mine = example(base={"arena": "synthetic"}, budget={"trial_seconds": 20, "compute_hours": 1})
    done = proposed(tmp_path, other, mine, head=head)
    assert done.study.base.set == {"world": "clear"}
    assert done.study.budget.trials == 30
    assert done.study.budget.researcher_tokens == 250
    problems = events(tmp_path / "study.toml.proposal" / PROPOSAL)[1].problem
    assert problems == 'base.set.world is "plateau", and this topic sets "clear"'


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("+++\nx = 1\n+++\n", "it may have the tables"),
        ("+++\n[budget]\nx = 1\n+++\n", "unknown budget: x"),
        ("+++\n[budget]\ntrials = 0\n+++\n", "budget.trials: Input should be greater"),
        ("+++\n[\n+++\n", "cannot be decoded"),
        ("x" * 3000, "needs a question of at most 2000 characters"),
    ],
)
def test_a_topic_that_cannot_be_used_is_an_error(tmp_path: Path, head: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_topic(topic(tmp_path, head))


def test_a_declined_topic_is_a_clear_refusal(tmp_path: Path) -> None:
    with pytest.raises(ResearcherFailedError, match="declined: no arena has a method"):
        proposed(tmp_path, {"declined": "no arena has\na method"})


def test_answers_cannot_change_what_a_terminal_does(tmp_path: Path) -> None:
    seen: list[str] = []
    bad = example(base={"arena": "synthetic", "set": {"\x1b[2J": 1}})
    with pytest.raises(ResearcherFailedError) as failure:
        proposed(tmp_path, bad, {"declined": "\x1b[2J"}, on_problem=seen.append)
    assert "\x1b" not in "".join([*seen, failure.value.message])
    assert "[2J" in seen[0]


def test_a_file_that_exists_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        proposed(tmp_path, example())
    assert (tmp_path / "study.toml").read_text() == "mine"


def test_the_same_command_continues_with_what_is_left(tmp_path: Path) -> None:
    limits = ResearcherLimits(tokens=215)
    with pytest.raises(RuntimeError):
        # Killed before the answer came: its worst case counts.
        proposed(tmp_path, RuntimeError(), limits=limits)
    with pytest.raises(ResearcherFailedError) as failure:
        proposed(tmp_path, "no", "no", "no", limits=limits)
    assert "it may take 100 tokens, and 95 of 215 are left" in failure.value.message
    its = events(tmp_path / "study.toml.proposal" / PROPOSAL)
    assert [one.number for one in its] == [1, 2, 2, 3, 3][: len(its)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("x", "no JSON object"),
        ("x" * 200_001, "more than 200000"),
        ("{" * 100_000, "JSON"),
        ('{"a": ' * 9000 + "1" + "}" * 9000, "JSON"),
        ('{"study": NaN}', "JSON"),
        ('{"other": 1}', "its key is 'other'"),
        ('{"study": 1, "more": 2}', "an object with one key"),
        ("[1]", "no JSON object"),
    ],
)
def test_answers_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_answer(text, "study")


@pytest.mark.parametrize(
    "text",
    ['{"study": 1}', '<think>{"study": 2}</think>\n```json\n{"study": 1}\n```', 'a {"study": 1}.'],
)
def test_answers_may_have_thoughts_and_fences(text: str) -> None:
    assert read_answer(text, "study") == 1


def test_a_declined_answer_is_recognised() -> None:
    with pytest.raises(DeclinedError, match="why"):
        read_answer('{"declined": "why"}', "study")


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
@settings(deadline=None, max_examples=examples(150))
def test_what_is_written_is_read_again(content: dict[str, Any]) -> None:
    assert tomllib.loads(study_toml(content)) == content


def test_values_that_no_study_has_are_refused() -> None:
    for value in (None, float("nan"), {1, 2}):
        with pytest.raises(ValueError, match="a study cannot have"):
            study_toml({"a": [value]})


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90), st.booleans()), max_size=12))
def test_no_order_of_requests_spends_more_than_its_limits(
    requests: Sequence[tuple[int, int, bool]],
) -> None:
    spending, limits, spent = ResearcherSpending(), ResearcherLimits(200, 2.0), 0
    for most, taken, killed in requests:
        if spending.excess(most, most / 100, limits):
            continue
        number = spending.requests + 1
        spending.apply(
            ResearcherAsked(
                number=number,
                researcher="r",
                purpose="proposal",
                request="",
                tokens=most,
                money=most / 100,
            )
        )
        its = most if killed else min(taken, most)
        spent += its
        if not killed:
            spending.apply(
                ResearcherAnswered(
                    number=number, tokens=its, money=its / 100, answer="", problem=""
                )
            )
    assert spent == spending.tokens <= 200
    assert spending.money <= 2.0 + 1e-9


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clear")
    looks = "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }"
    text = TEXT.replace(looks, "{ seeds = 10, alpha = 0.05 }").replace("trials = 20", "trials = 21")
    run_study(written(directory, text), directory / "study", runner=FileRunner)
    return directory / "study"


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "alone" / "study"))


def report(study: Path, name: str = "report.md") -> str:
    return (study / "report" / name).read_text(encoding="utf-8")


def test_accepted_prose_is_in_the_report_under_its_name_and_verifies(study: Path) -> None:
    before = report(study)
    done = interpret_study(study, Scripted({"prose": GOOD}), clock=VirtualClock())
    assert (done.prose, done.problem, done.tokens) == (GOOD, "", 10)
    after = report(study)
    assert "## Interpretations" in after
    assert "</a>scripted | accepted |" in after
    assert '> [method="b" is better than method="a" in score' in after
    assert after.startswith(before[: before.index("## Trials")])
    assert json.loads(report(study, "report.json"))["interpretations"][0]["prose"] == GOOD
    said = str(study_status(study))
    assert "the researcher scripted interpreted the report" in said
    assert "request 1 to a researcher ended" in said
    assert verify_study(study).problems == []


def test_the_problems_of_prose_reach_the_researcher(study: Path) -> None:
    researcher = Scripted({"prose": "The arm b is 3 times better."}, {"prose": GOOD})
    assert interpret_study(study, researcher, clock=VirtualClock()).problem == ""
    assert researcher.requests[1]["problems"] == ["'3' is a number", "'better' compares"]


@pytest.mark.parametrize(
    "answers",
    [
        [away(temporary=False)],
        [away()] * 100,
        [{"prose": "b is better"}] * 5,
        [{"declined": "nothing to say"}],
    ],
)
def test_without_prose_the_report_is_complete_and_says_that(
    study: Path, answers: list[Any]
) -> None:
    before = report(study)
    done = interpret_study(study, Scripted(*answers), clock=VirtualClock())
    assert done.prose == ""
    assert done.problem
    assert "none was accepted; the reason is in the record" in report(study)
    assert report(study).startswith(before[: before.index("## Trials")])
    assert "interpretation of scripted: " in report(study, "record.md")
    assert verify_study(study).problems == []


def test_an_endpoint_that_comes_back_is_waited_for(study: Path) -> None:
    clock = VirtualClock()
    done = interpret_study(study, Scripted(away(), away(), {"prose": GOOD}), clock=clock)
    assert (done.prose, done.requests, clock.seconds) == (GOOD, 3, 3.0)


def test_what_may_have_been_paid_counts(study: Path) -> None:
    answers = [away(unpaid=False), away(), {"prose": GOOD}]
    done = interpret_study(study, Scripted(*answers), clock=VirtualClock())
    assert (done.tokens, done.money) == (110, 0.625)


def test_the_budget_of_the_study_holds_for_all_calls_together(tmp_path: Path) -> None:
    text = TEXT + (
        "researcher_tokens = 130\nresearcher_money = 9.0\n"
        'researcher_prices = { "scripted" = { input = 1.0, output = 2.0 } }\n'
    )
    run_study(written(tmp_path, text), tmp_path / "1" / "study", runner=FileRunner)
    study = tmp_path / "1" / "study"
    for _ in range(3):
        interpret_study(study, Scripted("no", "no"), tries=2, clock=VirtualClock())
    done = interpret_study(study, Scripted(), clock=VirtualClock())
    assert done.tokens == 40
    assert "it may take 100 tokens, and 90 of 130 are left" in done.problem
    assert verify_study(study).problems == []


def test_a_leader_finishes_what_a_killed_interpretation_left(study: Path) -> None:
    path = study / LEDGER
    ledger = StudyLedger(path)
    state = fold(ledger.rows)
    asked = b"{}"
    (study / TRANSCRIPTS).mkdir()
    (study / TRANSCRIPTS / "001-request.json").write_bytes(asked)
    ledger.append(
        ResearcherAsked(
            number=1,
            researcher="r",
            purpose="interpretation",
            request=hashlib.sha256(asked).hexdigest(),
            tokens=1,
            money=0,
        ),
        time="2026-01-01T00:00:00+00:00",
        elapsed=0.0,
    )
    ledger.close()
    assert verify_study(study).problems == []
    assert state.reported is not None
    assert interpret_study(study, Scripted({"prose": GOOD}), clock=VirtualClock()).requests == 2
    assert verify_study(study).problems == []


def rewritten(kind: str, **changes: Any) -> Any:
    """Change the last row of a kind, and sign the whole ledger and the report again."""

    def change(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
        [body for body in bodies if body["kind"] == kind][-1].update(changes)

    return _signed(change)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forge",
    [
        rewritten("interpreted", prose="The arm b is superior in this study."),
        rewritten("interpreted", prose="{{claim b-vs-a worse}}."),
        rewritten("interpreted", prose="", problem=""),
        rewritten("interpreted", prose="The verdict is at {{number none}}."),
        rewritten("researcher_asked", request="0" * 64),
        rewritten("researcher_answered", answer="0" * 64),
        rewritten("researcher_asked", purpose="proposal"),
        rewritten("researcher_answered", number=7),
    ],
)
def test_a_forged_interpretation_is_caught(study: Path, forge: Any) -> None:
    interpret_study(study, Scripted({"prose": GOOD}), clock=VirtualClock())
    assert verify_study(study).problems == []
    with suppress(ValueError, AssertionError, DamagedRecordError):
        # From some, no report can be compiled.
        forge(study, random.Random(0))
    assert verify_study(study).problems


def test_what_was_spent_beyond_the_budget_is_caught(tmp_path: Path) -> None:
    text = TEXT + "researcher_tokens = 130\n"
    study = tmp_path / "1" / "study"
    run_study(written(tmp_path, text), study, runner=FileRunner)
    interpret_study(study, Scripted({"prose": "The report has the verdict."}), clock=VirtualClock())
    assert verify_study(study).problems == []
    rewritten("researcher_asked", tokens=131)(study, random.Random(0))
    (problem, *_) = verify_study(study).problems
    assert problem.endswith("the budget of researchers did not allow this request.")


def test_a_changed_transcript_is_caught(study: Path) -> None:
    interpret_study(study, Scripted({"prose": GOOD}), clock=VirtualClock())
    (study / TRANSCRIPTS / "001-answer.txt").write_text("another")
    (problem,) = verify_study(study).problems
    assert "001-answer.txt is not what the researcher was asked, or said" in problem


def test_a_study_without_a_report_cannot_be_interpreted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no study"):
        interpret_study(tmp_path, Scripted())


def test_studies_beside_a_study_are_listed_in_its_report(tmp_path: Path) -> None:
    first = finished_study(tmp_path / "first", world="null")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / LEDGER).write_text("no ledger")
    second = finished_study(tmp_path / "second", world="clear")
    assert "## Other studies" not in report(first)
    listed = report(second)[report(second).index("## Other studies") :]
    assert '| <a id="earlier-1"></a>broken |  |  | unreadable |  |' in listed
    assert "</a>first | Which method differs from a in the world null? |" in listed
    assert "| finished | b-vs-a undecided |" in listed
    assert verify_study(second).problems == []
