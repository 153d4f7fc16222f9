"""``ajet preflight``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from agentjet.client import SwarmClient
from ajet_cli.memory_plan import GpuMachine, plan_memory, read_shape, ways_out
from ajet_cli.memory_plan.parts import GIB
from ajet_cli.memory_plan.printed import memory_json, memory_lines
from ajet_cli.run_files import read_run
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import DeadlineError, UnknownComponentError, error_from_payload
from ajet_core.plugin import PluginManager
from ajet_core.protocol import PreflightReport, RunConfig, ServerStatus
from ajet_server.page.visible_text import visible

_RETRIES = 1
_LOOK_SECONDS = 0.5
_FAILED = 1
_GPU_GIB = 80.0
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@click.command()
@server_options
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds to wait for a batch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--dry-run", is_flag=True, help="Compute the memory of a run. Needs no GPU.")
@click.option("--run", "run_file", metavar="FILE", help="--dry-run: TOML or JSON of the run.")
@click.option("--model", metavar="PATH", help="--dry-run: replaces model.path, or a config.json.")
@click.option("--gpus", type=click.IntRange(1), help="--dry-run: number of GPUs.  [default: 1]")
@click.option(
    "--gpu-memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="--dry-run: memory of a GPU.  [default: 80]",
)
@click.option(
    "--host-memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="--dry-run: memory of the machine.  [default: not checked]",
)
@click.option("--separate", is_flag=True, help="--dry-run: the engine has GPUs of its own.")
@config_option
@pass_state
def preflight(
    state: CliState,
    *,
    run_dir: Path | None,
    url: str | None,
    wait: float,
    as_json: bool,
    dry_run: bool,
    run_file: str | None,
    model: str | None,
    gpus: int | None,
    gpu_memory: float | None,
    host_memory: float | None,
    separate: bool,
) -> None:
    """Check the next batch before it is trained. Its episodes come from your clients.

    The trainer computes the next batch of the configured run without changing any weights. Exit
    status 1 means that a check failed. The run is then paused, and `ajet resume` trains the batch
    anyway.

    With --dry-run, only the memory of the run in a file is computed, from the sizes of its model.
    Exit status 1 then means that it does not fit.
    """
    if dry_run:
        if run_file is None:
            raise click.UsageError("--dry-run needs the configuration of a run: pass --run FILE")
        machine = GpuMachine(
            gpus or 1,
            int((gpu_memory or _GPU_GIB) * GIB),
            None if host_memory is None else int(host_memory * GIB),
            separate,
        )
        _print_memory(state, read_run(Path(run_file)), machine, model, as_json=as_json)
        return
    given = (run_file, model, gpus, gpu_memory, host_memory, separate or None)
    if any(option is not None for option in given):
        raise click.UsageError(
            "--run, --model, --gpus, --gpu-memory, --host-memory and --separate are for --dry-run"
        )
    server = find_server(state, url, run_dir)
    with SwarmClient(server.url, server.token, retries=_RETRIES) as client:
        client.preflight()
        click.echo(f"waiting for a batch: run your clients against {server.url}", err=True)
        report = _report(client, wait)
    click.echo(report.model_dump_json() if as_json else table(report))
    if report.verdict == "fail":
        raise SystemExit(_FAILED)


def _print_memory(
    state: CliState, run: RunConfig, machine: GpuMachine, model: str | None, *, as_json: bool
) -> None:
    """Print whether a run fits into the memory of a machine.

    :raises ConfigError: a setting is invalid, or the memory of a component is not known.
    """
    for kind in ("trainer", "engine"):
        _check_settings(state.plugins, run, kind)
    shape = read_shape(Path(model or run.model.path), run.model.dtype)
    memory = plan_memory(run, shape, machine)
    ways = ways_out(memory) if memory.problems else ()
    if as_json:
        click.echo(json.dumps(memory_json(memory, ways)))
    else:
        for line in memory_lines(memory, ways):
            click.echo(line)
    if memory.problems:
        raise SystemExit(_FAILED)


def _check_settings(plugins: PluginManager, run: RunConfig, kind: str) -> None:
    """Check the settings of a component if its plugin is installed here.

    :raises ConfigError: they are invalid.
    """
    choice = run.trainer if kind == "trainer" else run.engine
    try:
        spec = plugins.trainer(choice.name) if kind == "trainer" else plugins.engine(choice.name)
    except UnknownComponentError:
        click.echo(
            f"{kind} {choice.name!r} is not installed here, so its settings are not checked; its "
            "memory is computed all the same",
            err=True,
        )
        return
    plugins.validate_settings(spec, choice.settings)


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
        lines.append(f"{verdict} {check.name:<9} {visible(check.found)}")
        if check.way_out:
            lines.append(f"{'':<15} -> {visible(check.way_out)}")
    lines.append(f"preflight of step {report.step}: {report.verdict} ({report.seconds:.1f} s)")
    return "\n".join(lines)
