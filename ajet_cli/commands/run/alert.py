"""``ajet alert``."""

from __future__ import annotations

import asyncio

import click

from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.protocol import Finding
from ajet_installation.settings import Settings
from ajet_server.alerts.alerting import label
from ajet_server.alerts.redacting import Redactor
from ajet_server.alerts.sending import Alert, AlertFailedError, send


@click.command()
@config_option
@pass_state
@click.pass_context
def alert(context: click.Context, state: CliState) -> None:
    """Send a test alert to all recipients in the settings, from this machine.

    The exit status is 1 if one of them did not get it.
    """
    settings = state.settings()
    if not settings.alerts:
        raise click.UsageError(
            "the settings have no alerts: add a section [[alerts]] to ajet.toml (docs/alerts.md)"
        )
    results = asyncio.run(_send_all(settings))
    for number, (recipient, problem) in enumerate(zip(settings.alerts, results, strict=True), 1):
        click.echo(f"{label(number, recipient)}: {problem or 'sent'}")
    if any(results):
        context.exit(1)


async def _send_all(settings: Settings) -> list[str]:
    """Return why each recipient did not get the alert, "" if it did."""
    redact = Redactor(settings)
    finding = Finding(code="test", message="a test of this alert", seconds=0.0, stuck=False)
    test = Alert.of(finding, redact, run_id="", step=0, test=True)
    problems = []
    for recipient in settings.alerts:
        try:
            await send(test, recipient, redact)
        except AlertFailedError as error:
            problems.append(str(error))
        else:
            problems.append("")
    return problems
