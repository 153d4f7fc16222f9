"""``ajet replay``."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ajet_cli.changed_config import changed_config
from ajet_cli.lone_trainer import LoneTrainer, TrainerSetup
from ajet_cli.replay.comparison import Reproduction, StepChange
from ajet_cli.replay.packing import MODEL, pack_store, unpacked, write_pack
from ajet_cli.replay.recorded import Preparation, RecordedRun
from ajet_cli.replay.rescoring import Rescored, load_reward
from ajet_cli.replay.rescoring import rescore as rescore_step
from ajet_cli.replay.retraining import CHANGEABLE, Replayer, retrain_step
from ajet_cli.run_paths import RunPath
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ModelDirectoryError, RequestError
from ajet_core.protocol import RunConfig
from ajet_server.store.chosen_store import store_of_run

_SHOWN_EPISODES = 3
_SHOWN_METRICS = ("loss", "grad_norm", "clip_fraction", "update_kl", "entropy")


@dataclass(frozen=True, slots=True)
class _StepRange:
    """Steps to replay, both included; None means the last one."""

    first: int | None
    last: int | None

    def of(self, run: RecordedRun) -> range:
        """Return the numbers of the steps.

        :raises RequestError: the run did not train them.
        """
        last = run.last_step if self.last is None else self.last
        first = last if self.first is None else self.first
        if first > last:
            raise RequestError(f"--steps {first}:{last}: the first step comes after the last")
        if first < run.first_step or last > run.last_step:
            raise RequestError(
                f"steps {first} to {last}: the run has the steps {run.first_step} to "
                f"{run.last_step}"
            )
        return range(first, last + 1)


def _step_range(_: click.Context, __: click.Parameter, value: str | None) -> _StepRange:
    """Parse ``--steps``."""
    if value is None:
        return _StepRange(None, None)
    match = re.fullmatch(r"(\d+)(?::(\d+))?", value)
    if match is None or int(match[1]) < 1:
        raise click.BadParameter(f"{value!r} is not a step, such as 3, or steps, such as 3:9")
    return _StepRange(int(match[1]), int(match[2] or match[1]))


_run_argument = click.argument("run", type=RunPath())
_steps_option = click.option(
    "--steps",
    metavar="A:B",
    callback=_step_range,
    help="A step, or the first and the last of several.  [default: the last]",
)
_model_option = click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Directory of the run's model, if it was moved.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON line per step.")


@click.group()
def replay() -> None:
    """Compute training steps of a recorded run again.

    RUN is a run directory, whose server may be running, or a file of `ajet replay export`. Nothing
    in it changes.
    """


@dataclass(frozen=True, slots=True)
class _Session:
    """An opened run, and a directory for what the replay writes."""

    cli: CliState
    run: RecordedRun
    scratch: Path

    def preparation(self, config: RunConfig) -> Preparation:
        return Preparation.of(config, self.cli.plugins, self.run.run_dir)

    @asynccontextmanager
    async def replayer(self, name: str, changes: Sequence[str] = ()) -> AsyncIterator[Replayer]:
        """Run a trainer within the context.

        :param name: of its directory.
        """
        directory = self.scratch / name
        directory.mkdir()

        def plan(config: RunConfig) -> tuple[TrainerSetup, Preparation]:
            return self._setup(config, directory), self.preparation(config)

        setup, _ = plan(changed_config(self.run.config, changes, CHANGEABLE))
        async with LoneTrainer.running(setup, directory / "logs" / "trainer.log") as trainer:
            yield Replayer(self.run, trainer, plan, directory / "checkpoint", changes)

    def _setup(self, config: RunConfig, directory: Path) -> TrainerSetup:
        try:
            return TrainerSetup.of(config, self.cli.settings(), self.cli.plugins, directory)
        except ModelDirectoryError as error:
            raise ModelDirectoryError(
                f"the model of the run cannot be used: {error.message}. Put it back, or give its "
                "new directory with --model",
                param=error.param,
            ) from error

    async def reached(self, replayer: Replayer, step: int) -> None:
        async for reproduced in replayer.reach(step):
            click.echo(f"trained step {reproduced.step} to reach step {step}", err=True)
            if not reproduced.identical:
                click.echo(
                    f"warning: step {reproduced.step} differs from its record, so the weights "
                    f"before step {step} are not exactly those of the run",
                    err=True,
                )


@asynccontextmanager
async def _opened(cli: CliState, run: Path, model: Path | None) -> AsyncIterator[_Session]:
    """Open a run; `model` is a directory that replaces that of its configuration."""
    with unpacked(run) as pack, TemporaryDirectory(prefix="ajet-replay-") as scratch:
        if pack is not None:
            run_dir, store = pack, pack_store(pack, cli.plugins)
        else:
            run_dir = _directory(run)
            store = store_of_run(run, cli.settings().store, cli.plugins)
        recorded = await RecordedRun.open(run_dir, store)
        try:
            inside = run_dir / MODEL if pack is not None else recorded.config.model.path
            path = inside if model is None else model
            moved = recorded.config.model.model_copy(update={"path": str(path)})
            recorded.config = recorded.config.model_copy(update={"model": moved})
            yield _Session(cli, recorded, Path(scratch))
        finally:
            await recorded.close()


def _directory(run: Path) -> Path:
    """Return the directory of a run that may be given by the file of its store."""
    return run if run.is_dir() else run.parent


@replay.command()
@_run_argument
@_steps_option
@_model_option
@_json_option
@config_option
@pass_state
def rerun(
    cli: CliState, *, run: Path, steps: _StepRange, model: Path | None, as_json: bool
) -> None:
    """Train steps again as they were, and compare them with their records.

    Exits with 1 if anything differs. Steps of exact runs are the same to the bit.
    """

    async def work() -> bool:
        same = True
        async with (
            _opened(cli, run, model) as session,
            session.replayer("usual") as replayer,
        ):
            chosen = steps.of(session.run)
            await session.reached(replayer, chosen[0])
            for number in chosen:
                reproduced, _, _ = await replayer.rerun(await session.run.step(number))
                same = same and reproduced.identical
                _show(reproduced, as_json, _reproduction_lines)
        return same

    if not asyncio.run(work()):
        raise SystemExit(1)


@replay.command()
@_run_argument
@_steps_option
@click.option(
    "--set",
    "changes",
    multiple=True,
    required=True,
    metavar="PATH=VALUE",
    help="A setting to change, such as algorithm.clip_high=0.28; may be repeated.",
)
@_model_option
@_json_option
@config_option
@pass_state
def retrain(
    cli: CliState,
    *,
    run: Path,
    steps: _StepRange,
    changes: tuple[str, ...],
    model: Path | None,
    as_json: bool,
) -> None:
    """Train steps with changed settings, each from the weights before the recorded step.

    Shows what the change does to the loss, the gradient, the policy and each episode.
    """

    async def work() -> None:
        async with (
            _opened(cli, run, model) as session,
            session.replayer("usual") as usual,
            session.replayer("changed", changes) as changed,
        ):
            chosen = steps.of(session.run)
            await session.reached(usual, chosen[0])
            for number in chosen:
                recorded = await session.run.step(number)
                change = await retrain_step(recorded, usual, changed, session.scratch)
                _show(change, as_json, _change_lines)

    asyncio.run(work())


@replay.command()
@_run_argument
@_steps_option
@click.option(
    "--reward",
    required=True,
    metavar="MODULE:FUNCTION",
    help="A function from an episode to its reward; see docs/replay.md.",
)
@_json_option
@config_option
@pass_state
def rescore(cli: CliState, *, run: Path, steps: _StepRange, reward: str, as_json: bool) -> None:
    """Compute rewards and advantages of steps again, without inference or training."""
    function = load_reward(reward)

    async def work() -> None:
        async with _opened(cli, run, None) as session:
            for number in steps.of(session.run):
                recorded = await session.run.step(number)
                preparation = session.preparation(session.run.config_of(number))
                _show(rescore_step(recorded, preparation, function), as_json, _rescored_lines)

    asyncio.run(work())


@replay.command()
@_run_argument
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--step", type=click.IntRange(1), help="The step.  [default: the last]")
@_model_option
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@config_option
@pass_state
def export(
    cli: CliState, *, run: Path, out: Path, step: int | None, model: Path | None, force: bool
) -> None:
    """Write a step to one file, for `ajet replay` on another machine.

    OUT ends in .tar. It contains the step's prompts and answers, the model, and the weights and the
    optimiser before the step.
    """
    if out.suffix != ".tar":
        raise RequestError(f"{out}: the name of the file must end in .tar")
    if not out.parent.is_dir():
        raise RequestError(f"{out}: the directory {out.parent} does not exist")
    if out.exists() and not force:
        raise RequestError(f"{out} exists: choose another name, or replace it with --force")

    async def work() -> None:
        async with _opened(cli, run, model) as session:
            (number,) = _StepRange(step, step).of(session.run)
            recorded = await session.run.step(number)
            async with session.replayer("usual") as replayer:
                await session.reached(replayer, number)
                try:
                    await write_pack(session.run, recorded, replayer.trainer, cli.plugins, out)
                except OSError as error:
                    raise RequestError(f"cannot write {out}: {error}") from error

    asyncio.run(work())
    click.echo(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")


def _show(result: Any, as_json: bool, lines: Callable[[Any], list[str]]) -> None:
    if as_json:
        extra = {"identical": result.identical} if isinstance(result, Reproduction) else {}
        click.echo(json.dumps(_finite({**asdict(result), **extra})))
    else:
        click.echo("\n".join(lines(result)))


def _finite(value: Any) -> Any:
    """Replace NaN, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _reproduction_lines(result: Reproduction) -> list[str]:
    if result.identical:
        return [f"step {result.step}: identical"]
    gap, credit = result.logprob_difference, result.advantage_difference
    differs = f"differs by {gap:.3g} nats in a logprob and {credit:.3g} in an advantage"
    lines = [f"step {result.step}: {differs}"]
    if result.missing:
        lines.append(f"  {result.missing} calls were trained in only one of the two")
    lines += [f"  {name}: {a:.6g}, now {b:.6g}" for name, (a, b) in sorted(result.metrics.items())]
    return lines


def _change_lines(change: StepChange) -> list[str]:
    # The record, then the change: if the first differs, the numbers are of other weights.
    first, *differences = _reproduction_lines(change.reproduced)
    lines = [f"{first}, without the change", *differences]
    for name in _SHOWN_METRICS:
        if name in change.metrics:
            before, after = change.metrics[name]
            lines.append(f"  {name:16} {before:.6g} -> {after:.6g}")
    for name, value in (
        ("gradient cosine", change.gradient_cosine),
        ("update cosine", change.update_cosine),
        ("KL after, nats", change.divergence),
    ):
        lines.append(f"  {name:16} {'not available' if value is None else f'{value:.6g}'}")
    if change.update_norms is not None:
        before, after = change.update_norms
        lines.append(f"  {'update norm':16} {before:.6g} -> {after:.6g}")
    for one in change.episodes[:_SHOWN_EPISODES]:
        moves = ["?" if move is None else f"{move:+.5f}" for move in one.moves]
        lines.append(
            f"  episode {one.episode_id[:8]} of {one.task_id}: advantage "
            f"{one.advantages[0]:+.4g} -> {one.advantages[1]:+.4g}, logprob per token "
            f"{moves[0]} -> {moves[1]}"
        )
    return lines


def _rescored_lines(rescored: Rescored) -> list[str]:
    (before, after), (equal, now_equal) = rescored.rewards, rescored.equal_tasks
    return [
        f"step {rescored.step}:",
        f"  mean reward       {before:.6g} -> {after:.6g}",
        f"  equal rewards     {equal} -> {now_equal} of {rescored.tasks} tasks",
        f"  other rewards     {rescored.changed} of {rescored.episodes} episodes",
        f"  other signs       of the advantages of {rescored.turned} of {rescored.calls} calls",
    ]
