"""``ajet demo``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of model and tasks."
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for everything it writes.  [default: runs/demo-seed{SEED}]",
)
@click.option(
    "--steps", type=click.IntRange(1), default=60, show_default=True, help="Most training steps."
)
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Success at which to stop.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output."
)
@click.option("--fresh", is_flag=True, help="Begin a new run beside one that exists.")
def demo(
    *, seed: int, run_dir: Path | None, steps: int, target: float, as_json: bool, fresh: bool
) -> None:
    """Train a tiny model on this machine, from end to end.

    Makes a model of 0.14 million parameters, starts a swarm server and a client, and trains the model to
    walk to a goal on a small grid, on one CPU core in about a minute. Interrupted, the same command
    goes on where it stopped.
    """
    from rich.console import Console

    from ajet_core.demo.orchestrate import DemoOptions, run_demo

    console = Console(stderr=as_json)
    summary = run_demo(
        DemoOptions(seed=seed, run_dir=run_dir, steps=steps, target=target, fresh=fresh), console
    )
    if as_json:
        click.echo(summary.model_dump_json())
