"""``ajet gpu-check``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ajet_cli.gpu_check.all_checks import Components, Options, check_machine
from ajet_cli.gpu_check.report import Check, GpuReport
from ajet_cli.gpu_check.work import LOADS
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError

_FAILED = 1


@click.command("gpu-check")
@click.option("--trainer", "trainers", multiple=True, help="A trainer; may be repeated.")
@click.option("--engine", "engines", multiple=True, help="An engine; may be repeated.")
@click.option(
    "--size",
    type=click.Choice(sorted(LOADS)),
    help="Size of the model with random weights.  [default: 0.5b with a GPU, else tiny]",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=15.0,
    show_default=True,
    help="Begin no check after this time.",
)
@click.option(
    "--demo-steps",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Steps of `ajet demo` with each pair; 0 for none.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("gpu-check.json"),
    show_default=True,
    help="File for the report, rewritten after each check.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report instead of lines.")
@config_option
@pass_state
def gpu_check(
    state: CliState,
    *,
    trainers: tuple[str, ...],
    engines: tuple[str, ...],
    size: str | None,
    minutes: float,
    demo_steps: int,
    output: Path,
    as_json: bool,
) -> None:
    """Check that this machine's GPUs serve and train a model as agentjet needs it.

    Makes a model with random weights and runs each pair of an installed trainer and engine: speed,
    memory, the difference between their logprobs, weight updates, prompts computed once for a
    group, sleep, NCCL, and steps of the demo. It works on a CPU, too. Exit status 1 means that a
    check failed.
    """
    if not output.absolute().parent.is_dir():
        raise RequestError(f"{output}: the directory {output.absolute().parent} does not exist")
    report = GpuReport(size="")

    def show(check: Check) -> None:
        report.checks.append(check)
        _write(report, output)
        if not as_json:
            click.echo(check.line())

    options = Options(
        components=Components(trainers, engines),
        size=size,
        seconds=60 * minutes,
        demo_steps=demo_steps,
        show=show,
    )
    with TemporaryDirectory(prefix="ajet-gpu-check-") as scratch:
        asyncio.run(check_machine(state.settings(), state.plugins, Path(scratch), options, report))
    _write(report, output)
    if as_json:
        click.echo(report.model_dump_json())
    else:
        counts = {v: sum(c.verdict == v for c in report.checks) for v in ("pass", "fail", "skip")}
        click.echo(
            f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped in "
            f"{report.seconds:.0f} s; report: {output}"
        )
    if report.failed:
        raise SystemExit(_FAILED)


def _write(report: GpuReport, output: Path) -> None:
    try:
        output.write_text(json.dumps(report.model_dump(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {output}: {error}") from error
