"""The commands that watch and steer a study."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_cli.studies.leading import begin_study
from ajet_cli.studies.lines import status_lines
from ajet_research.events import Amended, AnyEvent, Paused, Resumed
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import FileRunner
from ajet_research.status import study_status
from ajet_research.steering import REQUESTED, leader_of, new_request, steer
from ajet_research.verifying import verify_study
from tests.research.studies import TEXT, written
from tests.research.test_leader import KilledError

HOSTILE = "<script>alert(1)</script> \\u001b[2J & 'quoted'"
QUESTION = f"""
[[ask]]
id = "begin"
before_look = 1
question = "{HOSTILE}"
default = "no"
deadline_hours = 12
"""


def ajet(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["research", *map(str, arguments)])


def begun(tmp_path: Path, text: str = TEXT, rows: int = 16) -> Path:
    """The directory of a study whose leader was killed."""
    directory = tmp_path / "study"

    def die(event: AnyEvent) -> None:
        if len(list(read_ledger(directory / LEDGER))) == rows:
            raise KilledError

    with pytest.raises(KilledError):
        run_study(written(tmp_path, text), directory, on_event=die, runner=FileRunner)
    return directory


def outcomes(directory: Path) -> list[str]:
    values = [
        str(value)
        for row in read_ledger(directory / LEDGER)
        if row.event.kind == "finished"
        for value in row.event.metrics.values()
    ]
    assert values
    return values


def test_a_study_is_checked(tmp_path: Path) -> None:
    source = written(tmp_path, TEXT.replace("trials = 20", "trials = 2"))
    refused = ajet("check", source)
    assert refused.exit_code == 2
    assert "budget.trials is 2" in refused.output
    done = ajet("check", written(tmp_path), "--json")
    assert json.loads(done.output)["trials"] == 17
    assert "17 trials of 2 arms, at most 0.142 h" in ajet("check", source).output
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]
    mistaken = ajet("status", source)
    assert mistaken.exit_code == 2
    assert f"Give the directory of its study: {tmp_path / 'study.study'}" in mistaken.output


def test_a_study_is_steered_in_the_terminal(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    done = ajet("pause", directory, "--by", "ada", "--why", "lunch")
    assert (done.exit_code, done.output) == (0, "Recorded: paused by ada.\n")
    shown = ajet("status", directory).output
    assert "To continue: ajet research resume" in shown
    assert re.search(r"^An attempt took .* on average. At most \d+ trials left.$", shown, re.M)
    again = ajet("pause", directory)
    assert again.exit_code == 2
    assert "The study is paused since" in again.output
    done = ajet("amend", directory, "--budget.compute_hours=2", "--budget.trials", 30, "--why", "x")
    assert done.exit_code == 0, done.output
    taken = ajet("resume", directory, "--json")
    assert json.loads(taken.output) == {"kind": "resumed", "taken": True, "led": False}
    stopped = ajet("stop", directory, "--why", "enough", "--by", "ada")
    assert f"To continue: ajet research run {directory}" in stopped.output
    run_study(tmp_path / "study.toml", directory, runner=FileRunner)
    verified = ajet("verify", directory)
    assert verified.exit_code == 0
    assert "budget.compute_hours: 1 -> 2, budget.trials: 20 -> 30" in verified.output
    assert "ada: the study was stopped; outcomes hidden: enough" in verified.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inference.alpha", "0.1"], "'inference.alpha' cannot be amended: only these limits"),
        (["--budget.compute_hours", "0.5"], "an amendment can only raise it"),
        (["--budget.compute_hours", "much"], "is 'much', which is not a number"),
        (["--budget.compute_hours"], "Give each limit with its new number"),
        (["12"], "Give each limit with its new number"),
        ([], "Give each limit with its new number"),
    ],
)
def test_a_wrong_amendment_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    directory = begun(tmp_path, rows=3)
    done = ajet("amend", directory, *arguments, "--why", "x")
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.splitlines()) == 1
    assert ajet("amend", directory, "--budget.compute_hours", 2).exit_code == 2


def test_the_status_says_what_failed_and_how_long_an_attempt_takes(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    its = replace(
        study_status(begun(tmp_path)),
        trials={"finished": 4, "planned": 11, "reserved": 2},
        attempts=8,
        seconds=360.0,
        failed=1,
    )
    causes = f"ajet research status {directory} --json"
    assert list(status_lines(its, directory))[1:5] == [
        "The study is running. Trials: 4 finished, 11 planned, 2 running. Looks: 0.",
        "1 trial failed by what the arm does.",
        f"2 attempts failed by no fault of an arm. For the causes: {causes}",
        "An attempt took 1 min on average. At most 13 trials left.",
    ]
    assert not any("attempt" in line for line in status_lines(replace(its, attempts=2), directory))


class Page(HTMLParser):
    """Elements, and what a browser would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = dict(attrs)
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self.loads += [name for name in its if name.startswith("on")]
        if tag == "script" and its.get("type") != "application/json":
            self.loads.append("script")


def test_the_page_of_a_running_study_is_blinded_refreshes_itself_and_loads_nothing(
    tmp_path: Path,
) -> None:
    text = TEXT.replace("Is b better than a by more than 0.2?", HOSTILE)
    directory = begun(tmp_path, text)
    steer(directory, new_request("paused", by=HOSTILE, why=HOSTILE))
    done = ajet("page", directory, "--once")
    assert done.output == f"Page: {directory / 'page.html'}\n"
    page = (directory / "page.html").read_text()
    assert not [value for value in outcomes(directory) if value in page]
    assert "Outcomes are hidden until the first look." in page
    assert Page(page).loads == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \\u001b[2J" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert 'http-equiv="refresh"' not in page


def test_the_page_is_written_until_the_study_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begun(tmp_path)
    pages: list[str] = []

    def finish(seconds: float) -> None:
        pages.append((tmp_path / "out.html").read_text())
        run_study(tmp_path / "study.toml", directory, runner=FileRunner)

    monkeypatch.setattr("ajet_cli.studies.commands.time.sleep", finish)
    done = ajet("page", directory, "--out", tmp_path / "out.html", "--interval", 7)
    assert done.exit_code == 0, done.output
    (first,) = pages
    assert '<meta http-equiv="refresh" content="7">' in first
    last = (tmp_path / "out.html").read_text()
    assert 'http-equiv="refresh"' not in last
    assert "better" in last


def test_watching_ends_with_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = begun(tmp_path)
    hidden = outcomes(directory)

    def finish(seconds: float) -> None:
        run_study(tmp_path / "study.toml", directory, runner=FileRunner)

    monkeypatch.setattr("ajet_cli.commands.research.time.sleep", finish)
    done = ajet("status", directory, "--watch")
    assert done.exit_code == 0, done.output
    assert re.search(
        r'arm +method="a": [89] done \(0 failed\), 0 running, 0 lost, 0 left', done.output
    )
    assert "finished; 2 of 2 looks" in done.output
    assert not [value for value in hidden if value in done.output]
    assert ajet("status", directory, "--watch", "--json").exit_code == 2


def test_a_terminal_gets_no_control_characters_of_a_study(tmp_path: Path) -> None:
    directory = begun(tmp_path, TEXT + QUESTION, rows=3)
    done = ajet("status", directory)
    assert "\x1b" not in done.output
    assert "Question begin: <script>" in done.output
    assert "then no)" in done.output
    wait = ajet("wait", directory, "--json")
    assert wait.exit_code == 0
    assert json.loads(wait.output)["open_question"]["id"] == "begin"


def test_an_answer_is_yes_or_no(tmp_path: Path) -> None:
    directory = begun(tmp_path, TEXT + QUESTION, rows=3)
    assert ajet("answer", directory, "begin", "maybe").exit_code == 2
    assert "the open one is 'begin'" in ajet("answer", directory, "other", "yes").output
    done = ajet("answer", directory, "begin", "yes", "--why", "go")
    assert done.exit_code == 0
    assert study_status(directory).phase == "running"


@pytest.mark.processes
def test_leaders_that_are_killed_while_people_act_lose_nothing(tmp_path: Path) -> None:
    source, directory = written(tmp_path, TEXT + QUESTION), tmp_path / "study"
    acts = {Paused: 0, Resumed: 0, Amended: 0}
    try:
        for round_ in range(3):
            leader = begin_study(source, directory, 2).leader
            assert steer(directory, new_request("paused", by="ada"), patience=60).led
            # The leader is killed with a request that it may or may not have taken.
            steer(directory, new_request("resumed", by="ada"), patience=0)
            os.kill(int(leader), signal.SIGKILL)
            more = {"compute_hours": 2.0 + round_}
            done = steer(
                directory, new_request("amended", by="ada", why="x", budget=more), patience=60
            )
            assert done.taken
            acts = {kind: count + 1 for kind, count in acts.items()}
        begin_study(source, directory, 2)
        answer = new_request("answered", by="ada", question="begin", answer="yes")
        assert steer(directory, answer, patience=60).taken
        assert ajet("wait", directory, "--end", "--seconds", 300).exit_code == 0
    finally:
        if leader_of(directory):
            os.kill(int(leader_of(directory)), signal.SIGKILL)
    events = [row.event for row in read_ledger(directory / LEDGER)]
    assert {kind: sum(isinstance(one, kind) for one in events) for kind in acts} == acts
    assert list((directory / REQUESTED).iterdir()) == []
    assert verify_study(directory).problems == []
    assert verify_study(directory).finished
