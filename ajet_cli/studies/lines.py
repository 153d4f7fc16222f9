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


def status_lines(its: StudyStatus, directory: Path) -> Iterator[str]:
    """Yield what matters about a study, one line each, without control characters."""
    yield visible(its.question)
    trials = ", ".join(f"{many} {_STATES.get(name, name)}" for name, many in its.trials.items())
    yield f"The study is {its.phase}. Trials: {trials}. Looks: {its.looks}."
    if its.failed:
        yield f"{count(its.failed, 'trial')} failed by what the arm does."
    again = its.attempts - its.trials.get("reserved", 0) - its.trials.get("finished", 0)
    if again > 0:
        causes = f"ajet research status {directory} --json"
        yield f"{count(again, 'attempt')} failed by no fault of an arm. For the causes: {causes}"
    if line := _pace(its):
        yield line
    for line in waiting_lines(its, directory):
        yield visible(line)
    if its.exhausted:
        yield f"The budget ended it early: {its.exhausted}."
    if its.ended:
        yield visible(f"It was ended early by {its.ended}.")
    for line in its.interventions:
        yield visible(line)
    for id_, verdict in its.verdicts.items():
        yield f"{id_}: {verdict}"
    if its.conclusion:
        yield visible(its.conclusion)
    if its.phase == "finished":
        yield f"Report: {directory / 'report' / 'report.html'}"


def _pace(its: StudyStatus) -> str:
    """Return how long a trial takes and how many may follow; "" if nothing is known or left."""
    running, planned = (its.trials.get(name, 0) for name in ("reserved", "planned"))
    ended = its.attempts - running
    if not ended or not running + planned or its.phase not in ("running", "asking", "paused"):
        return ""
    each = duration(its.seconds / ended)
    return f"An attempt took {each} on average. At most {count(running + planned, 'trial')} left."


def waiting_lines(its: StudyStatus, directory: Path) -> Iterator[str]:
    """Yield what the study waits for, with the command that lets it continue."""
    if its.paused:
        yield f"It is paused {its.paused}".rstrip(": ")
        yield f"To continue: ajet research resume {directory}"
    if (question := its.open_question) is not None:
        yield f"Question {question.id}: {question.question}"
        yield (
            f"To answer: ajet research answer {directory} {question.id} yes|no "
            f"(until {question.deadline}, then {question.default})"
        )
    if not its.leader and its.phase not in ("finished",):
        yield f"No leader is at work on this machine. To continue: ajet research run {directory}"


def status_table(its: StudyStatus, directory: Path) -> Table:
    """Return all that may be known about a study that runs."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(its, directory):
        style = _STYLES.get(its.phase, "") if name == "state" else ""
        table.add_row(name, Text(visible(value), style=style))
    return table


def _rows(its: StudyStatus, directory: Path) -> Iterator[tuple[str, str]]:
    yield "question", its.question
    looks = f"{its.looks} of {its.planned_looks} looks"
    leader = f"leader {its.leader}" if its.leader else "no leader"
    yield "state", f"{its.phase}; {looks}; {leader}"
    for line in waiting_lines(its, directory):
        yield "waits", line
    for arm in its.arms:
        done = f"{arm.done} done ({arm.failed} failed)"
        rest = f"{arm.running} running, {arm.lost} lost, {arm.left} left"
        yield "arm", f"{arm.arm}: {done}, {rest}"
    for one in its.budget:
        yield "budget", f"{one.name}: {number(one.used)} of {number(one.limit)}"
    for id_, verdict in its.verdicts.items():
        yield "verdict", f"{id_}: {verdict}"
    for line in its.interventions:
        yield "person", line
    for line in its.events:
        yield "event", line
    if its.conclusion:
        yield "answer", its.conclusion
