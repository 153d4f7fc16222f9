"""``ajet status``."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.live import Live
from rich.table import Table

from agentjet.client import SwarmClient
from ajet_cli.output import plain, table_console
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.protocol import (
    Evaluation,
    Finding,
    PaidUse,
    PreflightReport,
    RolloutStatus,
    ServerStatus,
    TagProgress,
)

_RETRIES = 1
_ABORTED = "aborted_"
# What shows whether a run learns, and whether the trainer and the engine agree.
_MAIN = (
    "reward_mean",
    "reward_std",
    "loss",
    "entropy",
    "kl",
    "update_kl",
    "grad_norm",
    "clip_fraction",
    "logprob_gap",
    "tokens_trained",
)
_TIMELINE_NOTES = {
    "calls_drifted": "answers would have changed through text (kept as sampled)",
    "calls_echoed_otherwise": "answers came back in another form (kept as sampled)",
    "tokens_altered": "tokens altered by merging",
    "calls_dropped": "calls excluded by limits",
    "calls_alone": "over-long calls trained alone",
}
_TIMELINE_METRICS = (
    "timelines",
    "tokens_raw",
    "tokens_merged",
    "tokens_planned",
    "tokens_drifted",
    "tokens_dropped",
    "tokens_recomputed",
    "forks",
    *_TIMELINE_NOTES,
)


@click.command()
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Keep refreshing until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between refreshes."
)
@click.option("--checks", is_flag=True, help="Also show the state of each training check.")
@click.option("--metrics", is_flag=True, help="Show all metrics of the last step.")
@config_option
@pass_state
def status(
    state: CliState,
    run_dir: Path | None,
    url: str | None,
    *,
    as_json: bool,
    watch: bool,
    interval: float,
    checks: bool,
    metrics: bool,
) -> None:
    """Show the status of a swarm server: that of RUN_DIR, or of --url."""
    if as_json and watch:
        raise click.UsageError("--json and --watch cannot be combined")
    server = find_server(state, url, run_dir)
    show = functools.partial(render, checks=checks, metrics=metrics)
    # Few retries, so that the user learns quickly that the server is away.
    with SwarmClient(server.url, server.token, retries=_RETRIES) as client:
        if as_json:
            click.echo(client.status().model_dump_json())
        elif not watch:
            table_console().print(show(client.status(), client.url))
        else:
            first = show(client.status(), client.url)
            with Live(first, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(show(client.status(), client.url), refresh=True)


_Row = tuple[str, str, str]
"""Name, value, style."""


def render(status: ServerStatus, url: str, *, checks: bool = False, metrics: bool = False) -> Table:
    """Build a compact table of one status.

    :param checks: include the state of each training check.
    :param metrics: include all metrics of the last step, not just the main ones.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows: list[_Row] = [
        ("server", url, ""),
        *_condition(status),
        *_batch(status),
        *_last_step(status, every=metrics),
        *spending_rows(status),
        *(_checks(status) if checks else ()),
        *(("evaluation", evaluation_text(evaluation), "") for evaluation in status.evaluations),
        *_totals(status),
        ("up", _duration(status.uptime_seconds), ""),
    ]
    for name, value, style in rows:
        table.add_row(plain(name), plain(value, style))
    return table


def _condition(status: ServerStatus) -> Iterator[_Row]:
    """Yield the state and its problems."""
    yield "state", status.state.value, "green" if status.state.value == "ROLLING" else "yellow"
    if status.error is not None:
        yield "error", f"{status.error.type}: {status.error.message}", "red"
    if status.paused is not None:
        yield "paused", status.paused, "red"
    if status.preflight is not None:
        yield "preflight", *_preflight(status.preflight)
    for finding in status.findings:
        if finding.code != "paused":
            name, style = finding.code.replace("_", " "), "red" if finding.stuck else "yellow"
            yield name, f"{finding.message}{_since(finding)}", style


def _since(finding: Finding) -> str:
    """Return since when a finding about training holds, and the last good checkpoint."""
    if finding.since_step is None:
        return ""
    good = finding.good_step
    where = (
        f"checkpoint of step {good}" if good else "none, only the model that the run started with"
    )
    return f" (since step {finding.since_step}; last good checkpoint: {where})"


def _checks(status: ServerStatus) -> Iterator[_Row]:
    for kind, standing in status.checks.items():
        style = {"ok": "green", "found": "red"}.get(standing, "yellow")
        yield f"check {kind.replace('_', ' ')}", standing, style


def _preflight(report: PreflightReport) -> tuple[str, str]:
    """Return the checks that did not pass, failed ones first, and the style."""
    checks = sorted(report.checks, key=lambda check: check.verdict != "fail")
    wrong = [f"{c.name}: {c.found}; {c.way_out}" for c in checks if c.verdict != "pass"]
    style = {"pass": "", "warn": "yellow", "fail": "red"}[report.verdict]
    return ". ".join([f"step {report.step}: {report.verdict}", *wrong]), style


def _batch(status: ServerStatus) -> Iterator[_Row]:
    """Yield the run and its progress."""
    yield "run", status.run_id or "none", ""
    yield "model", status.model or "none", ""
    yield "step", f"{status.step} (policy version {status.policy_version})", ""
    if (batch := status.batch) is not None:
        text = f"{batch.ready} of {batch.needed} {batch.full_by.replace('_', ' ')}"
        text += f", {batch.open_episodes} episodes open"
        text += f", {batch.quarantined} tasks quarantined" if batch.quarantined else ""
        yield "batch", text, ""
    if status.rollout is not None:
        yield "rollout", _rollout(status.rollout), ""
    for tag, progress in (status.mixture or {}).items():
        yield f"tag {tag}", tag_text(progress), "yellow" if progress.blocked else ""


def _last_step(status: ServerStatus, *, every: bool) -> Iterator[_Row]:
    if (step := status.last_step) is None:
        return
    rest = dict(step.metrics)
    timelines = _timelines(rest, step.plan)
    names, others = [name for name in _MAIN if name in rest], sorted(rest.keys() - set(_MAIN))
    values = [f"{name} {rest[name] + 0.0:.4g}" for name in (names + others if every else names)]
    if others and not every:
        values.append(f"and {len(others)} more (--metrics)")
    yield "last step", ", ".join(values), ""
    if timelines:
        yield "timelines", timelines, ""
    shown = {finding.message for finding in status.findings}
    for sentence in [*step.findings, *step.forks]:
        if sentence not in shown:
            yield "", sentence, "yellow"


def _totals(status: ServerStatus) -> Iterator[_Row]:
    counters = dict(status.counters)
    causes = {name: counters.pop(name) for name in list(counters) if name.startswith(_ABORTED)}
    if counters:
        totals = [f"{key} {value:.6g}" for key, value in sorted(counters.items())]
        yield "totals", ", ".join(totals), ""
    if any(causes.values()):
        aborted = [
            f"{value:.0f} {name.removeprefix(_ABORTED).replace('_', ' ')}"
            for name, value in sorted(causes.items())
            if value
        ]
        yield "aborted", ", ".join(aborted), ""


def spending_rows(status: ServerStatus) -> Iterator[_Row]:
    """Yield the time and money that a run has spent, and when it will be done."""
    if (spending := status.spending) is None:
        return
    if (left := spending.time_left) is not None and left.steps:
        text = f"{_duration(left.seconds)} for {left.steps} more steps"
        if left.low is not None and left.high is not None:
            text += f" (90 %: {_duration(left.low)} to {_duration(left.high)})"
        yield "time left", text, ""
    if spending.seconds:
        phases = [f"{phase} {_duration(value)}" for phase, value in spending.seconds.items()]
        yield "time", ", ".join(phases), ""
        held = ", ".join(f"{number} {kind}" for kind, number in spending.devices.items())
        hours = [f"{phase} {value:.3g} h" for phase, value in spending.device_hours.items()]
        yield "devices", f"{held}: {', '.join(hours)}", ""
    if spending.device_usd is None and not spending.paid:
        cost = "unknown: no prices are set (costs.device_hour)"
    else:
        devices = "unknown" if spending.device_usd is None else f"{spending.device_usd:.2f}"
        uses = [_paid(use) for use in spending.paid]
        cost = f"{spending.usd:.2f} USD ({'; '.join([f'devices {devices}', *uses])})"
    yield "cost", cost, ""
    limits = []
    if spending.budget.usd is not None:
        limits.append(f"{spending.usd:.2f} of {spending.budget.usd:g} USD")
    if spending.budget.hours is not None:
        limits.append(f"{spending.active_hours:.3g} of {spending.budget.hours:g} hours")
    if limits:
        yield "budget", f"{', '.join(limits)} spent", ""


def _paid(use: PaidUse) -> str:
    amount = "no price" if use.usd is None else f"{use.usd:.2f}"
    if not use.model:
        return f"{use.source} {amount}"
    return f"{use.source} {use.model} {amount} for {use.input_tokens + use.output_tokens} tokens"


def _rollout(rollout: RolloutStatus) -> str:
    text = str(rollout.mode)
    if rollout.training_step is not None:
        text += f", step {rollout.training_step} is trained"
    if rollout.staleness_mean is not None:
        text += f", staleness {rollout.staleness_mean:.2f} (at most {rollout.staleness_max:.0f}"
        text += f" of {rollout.max_staleness} allowed)"
    return text


def tag_text(progress: TagProgress) -> str:
    """Return how far a tag of the mixture is in the batch that is being filled."""
    text = f"{progress.ready} of {progress.slots} slots ready, {progress.under_way} started"
    text += f" (ratio {progress.ratio:g})"
    return text + (", no client is working on it" if progress.blocked else "")


def evaluation_text(evaluation: Evaluation) -> str:
    """Return the results of a task set at its last step."""
    name = f"{evaluation.tag}, " if evaluation.tag else ""
    scores = [f"pass@{k} {value:.3f}" for k, value in evaluation.pass_at.items()]
    if evaluation.reward_mean is not None:
        scores.append(f"reward {evaluation.reward_mean:.4g}")
    counts = [f"{evaluation.episodes} episodes of {evaluation.tasks} tasks"]
    for word in ("open", "aborted", "mixed"):
        number = getattr(evaluation, word)
        counts += [f"{number} {word}"] * bool(number)
    shown = ", ".join(scores) or "no result yet"
    return f"{name}step {evaluation.step}: {shown} ({', '.join(counts)})"


def _timelines(metrics: dict[str, float], plan: str) -> str:
    """Format the step's numbers of tokens, and remove them from `metrics`."""
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
