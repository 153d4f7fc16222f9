"""The commands that steer a study, and its page."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ajet_cli.studies.places import StudyDirectory
from ajet_core.errors import ConfigError

_DIRECTORY = StudyDirectory()
_LIMIT = "--budget."
_by = click.option("--by", help="Name for the report.  [default: your name on this machine]")
_why = click.option("--why", default="", help="Why, for the report.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def user_name() -> str:
    """Return the name of this process's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


@click.command()
@click.argument("directory", type=_DIRECTORY)
@_by
@_why
@_as_json
def pause(directory: Path, by: str | None, why: str, as_json: bool) -> None:
    """Start no more trials of the study in DIRECTORY until it is resumed.

    Trials that run continue to their end. Pauses do not count as wall time of the budget.
    """
    _steer(directory, "paused", by, why, as_json)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@_by
@_why
@_as_json
def resume(directory: Path, by: str | None, why: str, as_json: bool) -> None:
    """Continue the study in DIRECTORY after a pause."""
    _steer(directory, "resumed", by, why, as_json)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@_by
@click.option("--why", required=True, help="Why, for the report.")
@_as_json
def stop(directory: Path, by: str | None, why: str, as_json: bool) -> None:
    """End the study in DIRECTORY: nothing more starts, and open comparisons stay undecided.

    Trials that run continue to their end. The report has who stopped it, and why.
    """
    _steer(directory, "stopped", by, why, as_json)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("directory", type=_DIRECTORY)
@click.argument("limits", nargs=-1, type=click.UNPROCESSED, metavar="--budget.LIMIT NUMBER...")
@_by
@click.option("--why", required=True, help="Why, for the report.")
@_as_json
def amend(directory: Path, limits: Sequence[str], by: str | None, why: str, as_json: bool) -> None:
    """Raise limits of the budget of the study in DIRECTORY.

    For example: ajet research amend DIR --budget.compute_hours 12 --why "the machine is slower"

    Only limits of the budget can change, and only grow. The report lists amendments, and whether
    outcomes were open by then.
    """
    _steer(directory, "amended", by, why, as_json, budget=_limits(limits))


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.argument("question")
@click.argument("value", type=click.Choice(["yes", "no"]))
@_by
@_why
@_as_json
def answer(
    directory: Path, question: str, value: str, by: str | None, why: str, *, as_json: bool
) -> None:
    """Answer the open QUESTION of the study in DIRECTORY, before its deadline."""
    _steer(directory, "answered", by, why, as_json, question=question, answer=value)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="[default: DIR/page.html]"
)
@click.option(
    "--interval",
    type=click.IntRange(1, 3600),
    default=5,
    show_default=True,
    help="Seconds between two versions.",
)
@click.option("--once", is_flag=True, help="Write it once.")
def page(directory: Path, out: Path | None, interval: int, *, once: bool) -> None:
    """Keep a page about the study in DIRECTORY up to date until the study is finished.

    Open it in a browser: it refreshes itself and loads nothing else. Outcomes stay hidden until
    their look.
    """
    from ajet_cli.studies.page import PAGE, study_page
    from ajet_core.files import write_whole
    from ajet_research.status import study_status

    path = out or directory / PAGE
    shown = False
    while True:
        status = study_status(directory)
        stays = once or status.phase == "finished"
        text = study_page(status, directory, seconds=None if stays else interval)
        write_whole(path, text.encode(), mode=0o644)
        if not shown:
            click.echo(f"Page: {path}")
            shown = True
        if stays:
            return
        time.sleep(interval)


def _limits(arguments: Sequence[str]) -> dict[str, float]:
    """Return limits by name, from ``--budget.NAME NUMBER`` or ``--budget.NAME=NUMBER``."""
    words = [part for one in arguments for part in one.split("=", 1)]
    limits: dict[str, float] = {}
    for option, value in zip(words[::2], words[1::2], strict=False):
        try:
            limits[option.removeprefix(_LIMIT).removeprefix("--")] = float(value)
        except ValueError:
            raise ConfigError(f"{option} is {value!r}, which is not a number.") from None
    if len(words) % 2 or not limits or not all(one.startswith("--") for one in words[::2]):
        raise ConfigError(
            "Give each limit with its new number, for example --budget.compute_hours 12"
        )
    return limits


def _steer(
    directory: Path, kind: str, by: str | None, why: str, as_json: bool, **content: Any
) -> None:
    from ajet_research.steering import new_request, steer

    event = new_request(kind, by=by or user_name(), why=why, **content)
    done = steer(directory, event)
    if as_json:
        click.echo(json.dumps({"kind": kind, "taken": done.taken, "led": done.led}))
        return
    if not done.taken:
        click.echo("The leader is busy and takes the request when it can.")
        return
    click.echo(f"Recorded: {kind} by {event.by}.")
    if not done.led and kind != "paused":
        click.echo(f"No leader is at work. To continue: ajet research run {directory}")


COMMANDS = (pause, resume, stop, amend, answer, page)
