"""``ajet preflight``."""

from __future__ import annotations

import time

import click

from agentjet.client import SwarmClient
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.errors import DeadlineError, error_from_payload
from ajet_core.protocol import PreflightReport, ServerStatus

_RETRIES = 1
_LOOK_SECONDS = 0.5
_FAILED = 1
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds to wait for a batch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@config_option
@pass_state
def preflight(state: CliState, url: str | None, wait: float, as_json: bool) -> None:
    """Check the next batch before it is trained. Its episodes come from your clients.

    The trainer computes the next batch of the configured run without changing any weights. Exit
    status 1 means that a check failed. The run is then paused, and `ajet resume` trains the batch
    anyway.
    """
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    with SwarmClient(settings.url, token, retries=_RETRIES) as client:
        client.preflight()
        click.echo(f"waiting for a batch: run your clients against {settings.url}", err=True)
        report = _report(client, wait)
    click.echo(report.model_dump_json() if as_json else table(report))
    if report.verdict == "fail":
        raise SystemExit(_FAILED)


def _report(client: SwarmClient, wait: float) -> PreflightReport:
    deadline = time.monotonic() + wait
    while True:
        status = client.status()
        if status.preflight is not None:
            return status.preflight
        if status.error is not None:
            raise error_from_payload(status.error.model_dump())
        if time.monotonic() >= deadline:
            raise DeadlineError(_not_full(status, wait))
        time.sleep(_LOOK_SECONDS)


def _not_full(status: ServerStatus, wait: float) -> str:
    """Explain why there is no batch, and what to do."""
    findings = "; ".join(finding.message for finding in status.findings)
    batch = status.batch
    progress = (
        f"{batch.ready} of {batch.needed} {_unit(batch.full_by)} are complete" if batch else ""
    )
    reason = findings or progress or f"the server is {status.state}"
    return (
        f"no batch to check within {wait:g} s: {reason}. Run a client that rolls out "
        "episodes of your tasks against this server, or wait longer (--wait); the next full "
        "batch is checked in any case"
    )


def _unit(full_by: str) -> str:
    return "episodes" if full_by == "episodes" else "tasks"


def table(report: PreflightReport) -> str:
    """Format the checks as lines, each with its fix."""
    lines = []
    for check in report.checks:
        verdict = click.style(f"{check.verdict:<5}", fg=_COLOURS[check.verdict])
        lines.append(f"{verdict} {check.name:<9} {check.found}")
        if check.way_out:
            lines.append(f"{'':<15} -> {check.way_out}")
    lines.append(f"preflight of step {report.step}: {report.verdict} ({report.seconds:.1f} s)")
    return "\n".join(lines)
