"""``ajet research``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ajet_cli.commands.researchers import interpret, propose
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_research.events import AnyEvent

_FAILED = 1
_SUITES = (
    *("null", "effects", "mutations", "faults", "swarm"),
    *("adversaries", "budgets", "outage"),
)
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_parallel = click.option(
    "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Trials at once."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def research() -> None:
    """Run studies: a registered question goes in, a verified report comes out.

    docs/research.md explains the study file, the statistics and the report.
    """
    try:
        import numpy
        import scipy

        _ = numpy, scipy
    except ImportError as error:
        raise ConfigError(
            f"ajet research needs {error.name}: pip install 'agentjet[research]'"
        ) from error


research.add_command(propose)
research.add_command(interpret)


@research.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--dir", "directory", type=_DIRECTORY, help="Its directory.  [default: STUDY.study]")
@_parallel
@_as_json
def run(study: Path, directory: Path | None, parallel: int, as_json: bool) -> None:
    """Start STUDY, resume it, or show that it is finished: always the same command.

    STUDY is a TOML file, a Markdown file with the study in its head between lines '+++', or the
    directory of a study that was started.
    """
    from ajet_research.leader import run_study

    if (study.parent / "ledger.sqlite").exists():
        # The study file inside a study's directory.
        source, where = study, study.parent
    elif study.is_dir():
        source, where = study / "study.toml", study
        source = source if source.exists() else study / "study.json"
    else:
        source, where = study, study.with_suffix(".study")
    where = directory or where
    run_study(source, where, parallel=parallel, on_event=_progress(as_json))
    _show_status(where, as_json)


@research.command()
@click.argument("directory", type=_DIRECTORY)
@_as_json
def status(directory: Path, as_json: bool) -> None:
    """Show how far the study in DIRECTORY is, without outcomes that its looks have not opened."""
    _show_status(directory, as_json)


@research.command()
@click.argument("directory", type=_DIRECTORY)
@_as_json
def verify(directory: Path, as_json: bool) -> None:
    """Derive the report in DIRECTORY again from the raw stores, byte for byte.

    Ends with 1 if anything differs.
    """
    from ajet_research.verifying import verify_study

    result = verify_study(directory)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        for problem in result.problems:
            click.echo(problem)
        state = "finished" if result.finished else "not finished"
        click.echo(
            f"{len(result.problems)} problems: {result.rows} rows, {result.trials} raw stores, "
            f"{result.numerals} numerals; the study is {state}."
        )
    sys.exit(_FAILED if result.problems else 0)


@research.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--dir", "target", type=_DIRECTORY, help="Of the new study. [default: DIRECTORY-new]")
@_parallel
@_as_json
def replicate(directory: Path, target: Path | None, parallel: int, as_json: bool) -> None:
    """Run the study in DIRECTORY again with fresh seeds.

    Ends with 1 if a verdict comes out differently.
    """
    from ajet_research.replicating import replicate_study

    where = target or directory.with_name(f"{directory.resolve().name}-new")
    result = replicate_study(directory, where, parallel=parallel, on_event=_progress(as_json))
    if as_json:
        click.echo(json.dumps({**asdict(result), "repeated": result.repeated}))
    else:
        for id_, verdict in result.first.items():
            click.echo(f"{id_}: {verdict}; with fresh seeds: {result.again[id_]}")
        click.echo(f"The new study is in {where}.")
    sys.exit(0 if result.repeated else _FAILED)


@research.command()
@click.option("--suite", type=click.Choice(_SUITES), required=True)
@click.option(
    "--size",
    type=click.IntRange(1, 100_000),
    help="Studies, mutations, kills or topics. [default: by suite]",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the worlds.")
@click.option(
    "--dir", "directory", type=_DIRECTORY, help="Keep the suite swarm's studies; resume them."
)
def bench(suite: str, size: int | None, seed: int, directory: Path | None) -> None:
    """Measure studies in worlds whose truth is planted, and print one line of JSON."""
    from ajet_research.suites import SUITES

    if directory is not None and suite != "swarm":
        raise ConfigError(f"--dir is for the suite swarm; {suite} keeps nothing.")
    run_suite: Callable[..., dict[str, Any]] = SUITES[suite]
    options = {"size": size, "directory": directory}
    chosen = {name: value for name, value in options.items() if value is not None}
    click.echo(json.dumps(run_suite(seed=seed, **chosen)))


def _progress(quiet: bool) -> Callable[[AnyEvent], None] | None:
    """Return what shows rows of the ledger as they come, on standard error."""

    def show(event: AnyEvent) -> None:
        match event.kind:
            case "finished":
                what = f"failed: {event.failed}" if event.failed else "finished"
                click.echo(f"trial {event.trial} {what}", err=True)
            case "attempt_failed":
                click.echo(f"trial {event.trial}: {event.cause}; it is tried again", err=True)
            case "lost":
                click.echo(f"trial {event.trial} is lost", err=True)
            case "exhausted":
                click.echo(f"the budget's {event.resource} is used up", err=True)
            case "looked":
                said = ", ".join(f"{id_} {one.verdict}" for id_, one in event.findings.items())
                click.echo(f"look {event.look + 1}: {said}", err=True)
            case _:
                pass

    return None if quiet else show


def _show_status(directory: Path, as_json: bool) -> None:
    from ajet_research.status import study_status

    its = study_status(directory)
    if as_json:
        click.echo(json.dumps({**asdict(its), "directory": str(directory)}))
        return
    click.echo(its.question)
    trials = ", ".join(f"{count} {name}" for name, count in its.trials.items())
    click.echo(f"The study is {its.phase}. Trials: {trials}. Looks: {its.looks}.")
    if its.exhausted:
        click.echo(f"The budget ended it early: {its.exhausted}.")
    for id_, verdict in its.verdicts.items():
        click.echo(f"{id_}: {verdict}")
    if its.conclusion:
        click.echo(its.conclusion)
    if its.phase == "finished":
        click.echo(f"Report: {directory / 'report' / 'report.html'}")
