"""A study's status in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ajet_cli.words import count, duration, number
from ajet_research.status import StudyStatus
from ajet_server.page.visible_text import visible

_STYLES = {"running": "green", "finished": "green", "paused": "yellow", "asking": "yellow"}

_STATES = {"reserved": "running"}
"""Words of the ledger that say less to people than others."""


def status_lines(status: StudyStatus, directory: Path) -> Iterator[str]:
    """Yield what matters about a study, one line each, without control characters."""
    yield visible(status.question)
    trials = ", ".join(f"{many} {_STATES.get(name, name)}" for name, many in status.trials.items())
    yield f"The study is {status.phase}. Trials: {trials}. Looks: {status.looks}."
    if status.failed:
        yield f"{count(status.failed, 'trial')} failed by what the arm does."
    again = status.attempts - status.trials.get("reserved", 0) - status.trials.get("finished", 0)
    if again > 0:
        causes = f"ajet research status {directory} --json"
        yield f"{count(again, 'attempt')} failed by no fault of an arm. For the causes: {causes}"
    if line := _pace(status):
        yield line
    for line in waiting_lines(status, directory):
        yield visible(line)
    if status.exhausted:
        yield f"The budget ended it early: {status.exhausted}."
    if status.ended:
        yield visible(f"It was ended early by {status.ended}.")
    for line in status.interventions:
        yield visible(line)
    for id_, verdict in status.verdicts.items():
        yield f"{id_}: {verdict}"
    if status.conclusion:
        yield visible(status.conclusion)
    if status.phase == "finished":
        yield f"Report: {directory / 'report' / 'report.html'}"


def _pace(status: StudyStatus) -> str:
    """Return how long a trial takes and how many may follow; "" if nothing is known or left."""
    running, planned = (status.trials.get(name, 0) for name in ("reserved", "planned"))
    ended = status.attempts - running
    if not ended or not running + planned or status.phase not in ("running", "asking", "paused"):
        return ""
    each = duration(status.seconds / ended)
    return f"An attempt took {each} on average. At most {count(running + planned, 'trial')} left."


def waiting_lines(status: StudyStatus, directory: Path) -> Iterator[str]:
    """Yield what the study waits for, with the command that lets it continue."""
    if status.paused:
        yield f"It is paused {status.paused}".rstrip(": ")
        yield f"To continue: ajet research resume {directory}"
    if (question := status.open_question) is not None:
        yield f"Question {question.id}: {question.question}"
        yield (
            f"To answer: ajet research answer {directory} {question.id} yes|no "
            f"(until {question.deadline}, then {question.default})"
        )
    if not status.leader and status.phase not in ("finished",):
        yield f"No leader is at work on this machine. To continue: ajet research run {directory}"


def status_table(status: StudyStatus, directory: Path) -> Table:
    """Return all that may be known about a study that runs."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(status, directory):
        style = _STYLES.get(status.phase, "") if name == "state" else ""
        table.add_row(name, Text(visible(value), style=style))
    return table


def _rows(status: StudyStatus, directory: Path) -> Iterator[tuple[str, str]]:
    yield "question", status.question
    looks = f"{status.looks} of {status.planned_looks} looks"
    leader = f"leader {status.leader}" if status.leader else "no leader"
    yield "state", f"{status.phase}; {looks}; {leader}"
    for line in waiting_lines(status, directory):
        yield "waits", line
    for arm in status.arms:
        done = f"{arm.done} done ({arm.failed} failed)"
        rest = f"{arm.running} running, {arm.lost} lost, {arm.left} left"
        yield "arm", f"{arm.arm}: {done}, {rest}"
    for one in status.budget:
        yield "budget", f"{one.name}: {number(one.used)} of {number(one.limit)}"
    for id_, verdict in status.verdicts.items():
        yield "verdict", f"{id_}: {verdict}"
    for line in status.interventions:
        yield "person", line
    for line in status.events:
        yield "event", line
    if status.conclusion:
        yield "answer", status.conclusion
