"""``ajet status``."""

from __future__ import annotations

import time

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ajet_core.cli.output import table_console
from ajet_core.cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.client import SwarmClient
from ajet_core.protocol import ServerStatus

_RETRIES = 1
_ABORTED = "aborted_"
_TIMELINE_NOTES = {
    "calls_drifted": "answers would have drifted (kept as sampled)",
    "calls_echoed_otherwise": "answers came back in another form (kept as sampled)",
    "tokens_altered": "tokens altered by relaxed merging",
    "calls_dropped": "calls left out by limits",
    "calls_alone": "over-long calls trained alone",
}
_TIMELINE_METRICS = (
    "timelines",
    "tokens_raw",
    "tokens_merged",
    "tokens_planned",
    "tokens_drifted",
    "tokens_dropped",
    "tokens_paid_again",
    "forks",
    *_TIMELINE_NOTES,
)


@click.command()
@click.option("--url", help="The server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--watch", is_flag=True, help="Keep refreshing until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between refreshes."
)
@config_option
@pass_state
def status(state: CliState, url: str | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show what a swarm server is doing."""
    if as_json and watch:
        raise click.UsageError("--json and --watch cannot be combined")
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    # Who looks at a status wants to hear at once that the server is away.
    with SwarmClient(settings.url, token, retries=_RETRIES) as client:
        if as_json:
            click.echo(client.status().model_dump_json())
        elif not watch:
            table_console().print(render(client.status(), client.url))
        else:
            with Live(render(client.status(), client.url), auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(render(client.status(), client.url), refresh=True)


def render(status: ServerStatus, url: str) -> Table:
    """A compact table of one status."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")

    def row(name: str, value: str, style: str = "") -> None:
        table.add_row(name, Text(value, style=style))

    row("server", url)
    row("state", status.state.value, "green" if status.state.value == "ROLLING" else "yellow")
    if status.error is not None:
        row("error", f"{status.error.type}: {status.error.message}", "red")
    if status.paused is not None:
        row("paused", status.paused, "red")
    for finding in status.findings:
        if finding.code != "paused":
            row(
                finding.code.replace("_", " "),
                finding.message,
                "red" if finding.stuck else "yellow",
            )
    row("run", status.run_id or "none")
    row("model", status.model or "none")
    row("step", f"{status.step} (policy version {status.policy_version})")
    if status.batch is not None:
        batch = status.batch
        text = f"{batch.ready} of {batch.needed} {batch.full_by.replace('_', ' ')}"
        text += f", {batch.open_episodes} episodes open"
        row("batch", text + (f", {batch.set_aside} tasks set aside" if batch.set_aside else ""))
    if status.last_step is not None:
        rest = dict(status.last_step.metrics)
        timelines = _timelines(rest, status.last_step.plan)
        row("last step", ", ".join(f"{key} {value:.4g}" for key, value in sorted(rest.items())))
        if timelines:
            row("timelines", timelines)
        for sentence in [*status.last_step.findings, *status.last_step.forks]:
            row("", sentence, "yellow")
    counters = dict(status.counters)
    causes = {name: counters.pop(name) for name in list(counters) if name.startswith(_ABORTED)}
    if counters:
        row("totals", ", ".join(f"{key} {value:.6g}" for key, value in sorted(counters.items())))
    if any(causes.values()):
        told = [
            f"{value:.0f} {name.removeprefix(_ABORTED).replace('_', ' ')}"
            for name, value in sorted(causes.items())
            if value
        ]
        row("aborted", ", ".join(told))
    row("up", _duration(status.uptime_seconds))
    return table


def _timelines(metrics: dict[str, float], plan: str) -> str:
    """What became of the step's tokens; takes the metrics it tells out of `metrics`."""
    if "tokens_raw" not in metrics:
        return ""
    taken = {name: metrics.pop(name, 0.0) for name in _TIMELINE_METRICS}
    text = (
        f"{taken['timelines']:.0f}, {taken['tokens_raw']:.0f} tokens recorded, "
        f"{taken['tokens_merged']:.0f} distinct, {taken['tokens_planned']:.0f} computed"
    )
    text += f" as {plan.replace('_', ' ')}" if plan else ""
    for name, words in _TIMELINE_NOTES.items():
        if taken[name]:
            text += f"; {taken[name]:.0f} {words}"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
