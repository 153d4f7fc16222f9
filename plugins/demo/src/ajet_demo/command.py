"""``ajet demo``."""

from __future__ import annotations

import os
from pathlib import Path

import click
from pydantic import BaseModel


def _interpreters(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return absolute paths by component, because the server has another working directory."""
    interpreters = {}
    for value in values:
        component, separator, path = value.partition("=")
        if not separator or not Path(path).is_file():
            raise click.BadParameter(
                f"{value!r} is not COMPONENT=PATH with the path of an existing interpreter"
            )
        # Do not resolve links: the interpreter of an environment is a link.
        interpreters[component] = str(Path(path).absolute())
    return interpreters


@click.command()
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the run.",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for all output.  [default: runs/demo-seed{SEED}]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Maximum number of training steps.",
)
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Success rate at which to stop.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output."
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Start a new run, in a new directory next to an existing run.",
)
@click.option(
    "--browser",
    is_flag=True,
    help="Open the server's live page in a browser; print its address where there is none.",
)
@click.option(
    "--two-models",
    is_flag=True,
    help="Two models on two servers: a planner and an executor that must cooperate.",
)
@click.option("--engine", default="torch", show_default=True, help="Inference engine.")
@click.option("--trainer", default="torch", show_default=True, help="Trainer.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="COMPONENT=PATH",
    callback=_interpreters,
    help="Interpreter of a component, such as trainer:trl=.venvs/trl/bin/python; may be repeated.",
)
def demo(
    *,
    seed: int,
    run_dir: Path | None,
    steps: int,
    target: float,
    as_json: bool,
    fresh: bool,
    browser: bool,
    engine: str,
    two_models: bool,
    trainer: str,
    pythons: dict[str, str],
) -> None:
    """Train a tiny model on this machine, from end to end.

    Starts a swarm server and a client, and trains a model of 0.14 million parameters, which comes
    with the demo, to walk to a goal on a small grid. This takes less than a minute on two cores.
    Press Ctrl-C to stop. Run the same command again to resume.

    The server uses [store], [loggers], [plugins], [workers] and [servers] of ajet.toml; everything
    else is the demo's own.
    """
    from rich.console import Console

    from ajet_demo.orchestrate import DemoOptions, run_demo

    # The file of `ajet --config FILE demo`.
    if (config := getattr(click.get_current_context().obj, "config", None)) is not None:
        os.environ["AJET_CONFIG"] = str(config)
    console = Console(stderr=as_json)
    options = DemoOptions(
        seed=seed,
        run_dir=run_dir,
        steps=steps,
        target=target,
        fresh=fresh,
        browser=browser,
        engine=engine,
        trainer=trainer,
        python=pythons,
    )
    if two_models:
        from ajet_demo.two_models import run_two_models

        summary: BaseModel = run_two_models(options, console)
    else:
        summary = run_demo(options, console)
    if as_json:
        click.echo(summary.model_dump_json())
