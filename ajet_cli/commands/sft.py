"""``ajet sft``."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ajet_cli.changed_config import changed_config
from ajet_cli.lone_trainer import LoneTrainer, TrainerSetup
from ajet_cli.sft.best_episodes import BestChoice, best_episodes, config_of
from ajet_cli.sft.conversations import read_conversations
from ajet_cli.sft.training import (
    FIXED,
    Example,
    SftPlan,
    SftRun,
    SftStep,
    as_row,
    sft_config,
    without_long,
)
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ConfigError, RequestError
from ajet_core.files import lock_file, read_json
from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_core.plugin.targets import plugin_faults
from ajet_core.protocol import RunConfig
from ajet_installation.component_settings import component_settings
from ajet_installation.interpreters import find_trainer
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_server.observe.run_merger import make_merger
from ajet_server.store.chosen_store import store_of_run

CHANGEABLE = ("model.", "algorithm.", "timelines.", "trainer.settings.")
_LEARNING_RATE = 1e-5
_BEST = 0.25
# The files of a training that has not begun.
_NOTHING_TRAINED = {"lock", "episodes.json"}


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Directory of the model.  [default: that of the run]",
)
@click.option("--trainer", default="torch", show_default=True, help="Name of the trainer.")
@click.option(
    "--reader", help="Reader of the dataset.  [default: by the suffix of SOURCE, such as jsonl]"
)
@click.option(
    "--held-out",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A dataset whose loss is measured after each epoch.",
)
@click.option(
    "--best",
    type=click.FloatRange(0, 1, min_open=True),
    help="Of a run: the share of its training episodes to train on.  [default: 0.25, or 1 with "
    "--top]",
)
@click.option("--top", type=click.IntRange(1), help="Of a run: most episodes of each task.")
@click.option(
    "--min-reward",
    type=float,
    default=float("-inf"),
    help="Of a run: the lowest reward of an episode to train on.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How often each example is trained.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Conversations or episodes of a step.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="A setting, such as algorithm.learning_rate=1e-6; may be repeated.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**53 - 1),
    default=0,
    show_default=True,
    help="Of the order of the examples in each epoch, and of the trainer.",
)
@click.option(
    "--save-every",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Steps between checkpoints, from which the same command continues.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per step.")
@config_option
@pass_state
def sft(cli: CliState, /, *, source: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Fine-tune a model on answers, and write it to the directory OUT.

    SOURCE is a dataset of conversations, or a run directory, whose best episodes are used.
    """
    if out.exists():
        raise RequestError(f"{out} exists: choose another directory")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"{out}: the directory {out.absolute().parent} does not exist")

    def show(step: SftStep) -> None:
        click.echo(json.dumps(as_row(step)) if as_json else _line(step))

    with _unfinished(out) as directory:
        plan = _plan(cli, source, options, directory)
        asyncio.run(_train(cli, plan, out, directory, show))
    click.echo(f"wrote {out}", err=as_json)


async def _train(
    cli: CliState, plan: SftPlan, out: Path, directory: Path, show: Callable[[SftStep], None]
) -> None:
    setup = TrainerSetup.of(plan.config, cli.settings(), cli.plugins, directory)
    context = WorkerContext(run_dir=directory, seed=plan.config.seed)
    merger = make_merger(plan.config.merger, cli.plugins, context)
    async with LoneTrainer.running(setup, directory / "logs" / "trainer.log") as trainer:
        async for step in SftRun(plan, merger, trainer, directory).steps():
            show(step)
        exported = directory / "model"
        shutil.rmtree(exported, ignore_errors=True)
        await trainer.export(exported)
    try:
        exported.rename(out)
    except OSError as error:
        raise RequestError(
            f"cannot write {out}: {error.strerror}; the trained model is in {exported}"
        ) from error
    shutil.rmtree(directory)


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """Lock the directory that has the checkpoints until the model is written."""
    directory = out.with_name(f"{out.name}.unfinished")
    directory.mkdir(exist_ok=True)
    try:
        descriptor = lock_file(directory / "lock")
    except BlockingIOError as error:
        raise RequestError(f"process {error} is writing {out}: wait for it, or end it") from error
    try:
        yield directory
    finally:
        os.close(descriptor)
        if directory.is_dir() and {path.name for path in directory.iterdir()} <= {
            "lock",
            "episodes.json",
        }:
            shutil.rmtree(directory)


def _plan(cli: CliState, source: Path, options: dict[str, Any], directory: Path) -> SftPlan:
    """Read everything, and check the settings.

    :raises AjetError: something is missing or invalid.
    """
    # Settings of the model decide how answers are written, and others on how many there are.
    of_model = [change for change in options["changes"] if change.startswith("model.")]
    if source.is_dir():
        recorded = asyncio.run(config_of(source, _store(cli, source)))
        model = _config(options["model"] or Path(recorded.model.path), options, of_model)
        top, share = options["top"], options["best"]
        choice = BestChoice(
            share or (_BEST if top is None else 1.0),
            options["min_reward"],
            directory / "episodes.json",
            top,
        )
        best = asyncio.run(best_episodes(source, _store(cli, source), choice))
        examples = _short(source, best, model)
    elif options["model"] is None:
        raise RequestError("a dataset needs the option --model")
    else:
        model = _config(options["model"], options, of_model)
        examples = _short(source, _read(cli, source, options["reader"], model), model)
    held_out: list[Example] = []
    if (path := options["held_out"]) is not None:
        held_out = _short(path, _read(cli, path, options["reader"], model), model)
    spec = find_trainer(cli.plugins, options["trainer"])
    if held_out and not spec.capabilities.rehearses:
        raise ConfigError(
            f"trainer {spec.name!r} cannot measure a held-out loss: leave out --held-out",
            param="trainer.name",
        )
    plan = SftPlan(
        model, examples, held_out, options["epochs"], options["batch_size"], options["save_every"]
    )
    changes = list(options["changes"])
    names = {change.partition("=")[0] for change in changes}
    for name in FIXED:
        if f"algorithm.{name}" in names:
            raise ConfigError(
                f"--set algorithm.{name}: it has no meaning for given answers",
                param=f"algorithm.{name}",
            )
    if "algorithm.schedule" in names and "algorithm.schedule_steps" not in names:
        changes.append(f"algorithm.schedule_steps={plan.steps}")
    config = _config(Path(model.model.path), options, changes)
    return replace(plan, config=sft_config(config, spec.capabilities.algorithm_fields))


def _store(cli: CliState, run_dir: Path) -> SampleStore:
    return store_of_run(run_dir, cli.settings().store, cli.plugins)


def _config(model: Path, options: dict[str, Any], changes: Sequence[str]) -> RunConfig:
    config = RunConfig.model_validate(
        {
            "model": {"path": str(model)},
            "trainer": {"name": options["trainer"]},
            "algorithm": {"learning_rate": _LEARNING_RATE},
            "seed": options["seed"],
        }
    )
    return changed_config(config, changes, CHANGEABLE)


def _short(path: Path, examples: Sequence[Example], config: RunConfig) -> list[Example]:
    """Return the examples that fit into the model's context."""
    most = config.model.max_context
    if most is None:
        plain = read_json(Path(config.model.path) / "config.json")
        most = (plain.get("text_config") or plain).get("max_position_embeddings")
    short = without_long(examples, most)
    if len(short) < len(examples):
        if not short:
            raise RequestError(f"everything in {path} has more than the model's {most} tokens")
        click.echo(
            f"left out {len(examples) - len(short)} of {len(examples)} in {path}, which have more "
            f"than {most} tokens (model.max_context)",
            err=True,
        )
    return short


def _read(cli: CliState, path: Path, reader: str | None, config: RunConfig) -> list[Example]:
    name = reader or path.suffix.removeprefix(".")
    if name not in cli.plugins.names("reader"):
        known = ", ".join(sorted(cli.plugins.names("reader")))
        raise RequestError(f"{path}: no reader {name!r} is installed; choose --reader of {known}")
    spec = cli.plugins.reader(name)
    dataset_reader = cli.plugins.create(spec, component_settings(cli.plugins, spec))
    with plugin_faults(cli.plugins.describe(spec), "failed in read"):
        rows = list(dataset_reader.read(str(path)))
    renderer = make_renderer(config.model, Path(config.model.path))
    examples: list[Example] = list(read_conversations(rows, renderer))
    if not examples:
        raise RequestError(f"{path} has no conversations")
    return examples


def _line(step: SftStep) -> str:
    loss = "not reported" if math.isnan(step.loss) else f"{step.loss:.4f}"
    rate = "" if step.learning_rate is None else f", learning rate {step.learning_rate:.3g}"
    held_out = "" if step.held_out_loss is None else f", held out {step.held_out_loss:.4f}"
    return (
        f"step {step.step} of {step.steps}: loss {loss}{held_out} nats per token, "
        f"{step.tokens} tokens in {step.seconds:.1f} s{rate}"
    )
