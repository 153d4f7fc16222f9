"""``ajet gpu-check``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ajet_cli.gpu_check.all_checks import Components, Options, check_machine
from ajet_cli.gpu_check.report import CheckResult, GpuReport
from ajet_cli.gpu_check.work import LOADS
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_core.files import write_whole

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
    help="Stop checking after this time.",
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
    """Check that this machine's GPUs serve and train a model.

    Makes a model with random weights and runs each pair of an installed trainer and engine: speed,
    memory, the difference between their logprobs, weight updates, prompts computed once for a
    group, sleep, NCCL, and steps of the demo. It works on a CPU, too. Exit status 1 means that a
    check failed, or that none could be made.
    """
    if not output.absolute().parent.is_dir():
        raise RequestError(f"{output}: the directory {output.absolute().parent} does not exist")
    report = GpuReport()
    shown = _Shown(report, output, quiet=as_json)
    options = Options(
        components=Components(trainers, engines),
        size=size,
        seconds=60 * minutes,
        demo_steps=demo_steps,
        config=state.config,
        show=shown.add,
    )
    try:
        with TemporaryDirectory(prefix="ajet-gpu-check-") as scratch:
            work = check_machine(state.settings(), state.plugins, Path(scratch), options, report)
            asyncio.run(_until_a_signal(work))
    finally:
        if as_json:
            click.echo(report.model_dump_json())
    if not as_json:
        verdicts = Counter(check.verdict for check in report.checks)
        click.echo(
            f"{verdicts['pass']} passed, {verdicts['fail']} failed, {verdicts['skip']} skipped in "
            f"{report.seconds:.0f} s; report: {output}"
        )
    if not report.passed:
        raise SystemExit(_FAILED)


class _Shown:
    """Prints each result, and writes the report again."""

    def __init__(self, report: GpuReport, output: Path, *, quiet: bool) -> None:
        self._report = report
        self._output = output
        self._quiet = quiet
        self._began = time.monotonic()
        self._warned = False

    def add(self, check: CheckResult) -> None:
        self._report.checks.append(check)
        self._report.seconds = round(time.monotonic() - self._began, 1)
        if not self._quiet:
            click.echo(check.line())
        try:
            write_whole(self._output, self._report.model_dump_json(indent=1).encode(), mode=0o644)
        except OSError as error:
            if not self._warned:
                click.echo(f"warning: cannot write {self._output}: {error}", err=True)
            self._warned = True


async def _until_a_signal(work: Coroutine[None, None, None]) -> None:
    """Run `work`; SIGTERM and a closed terminal stop it like Ctrl-C, with all its processes."""
    loop = asyncio.get_running_loop()
    checking = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        checking.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        await checking
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise KeyboardInterrupt from None
