"""``ajet train``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from agentjet import Curriculum
from agentjet.client import AsyncSwarmClient
from ajet_cli.run_files import read_run
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.protocol import CallRules, CallSampling
from ajet_sources import load_source, train_source

_FAILED = 1


@click.command()
@click.argument("source")
@click.option("--split", metavar="NAME", help="Split of the tasks.  [default: the first]")
@click.option("--limit", type=click.IntRange(1), help="Take the first tasks only.")
@click.option("--group", type=click.IntRange(1), help="Episodes per task.  [default: the run's]")
@click.option(
    "--epochs", type=click.IntRange(1), default=1, show_default=True, help="Passes over the tasks."
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle the tasks of each epoch.")
@click.option(
    "--curriculum",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Take this share of the tasks in each epoch, those that teach most.",
)
@click.option("--concurrency", type=click.IntRange(1), help="Maximum number of episodes at once.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds until an episode is aborted.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Attempts after a failure.",
)
@click.option("--resume", is_flag=True, help="Skip episodes that have already ended.")
@click.option("--temperature", type=float, help="Sampling temperature, in place of the source's.")
@click.option(
    "--max-calls", type=click.IntRange(1), help="Maximum number of model calls per episode."
)
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum number of tokens per answer.")
@click.option(
    "--max-episode-tokens",
    type=click.IntRange(1),
    help="Maximum number of tokens of all answers of an episode.",
)
@click.option(
    "--run",
    "run_file",
    metavar="FILE",
    help="TOML or JSON file of the run to start if none is active.",
)
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@config_option
@pass_state
def train(
    state: CliState,
    /,
    source: str,
    *,
    curriculum: float | None,
    max_calls: int | None,
    max_tokens: int | None,
    max_episode_tokens: int | None,
    temperature: float | None,
    run_file: str | None,
    url: str | None,
    group: int | None,
    timeout: float | None,
    **options: Any,
) -> None:
    """Train on the tasks of SOURCE.

    SOURCE is NAME:ARGUMENT?key=value, or a file or directory of rows. An episode is aborted if its
    environment fails. docs/sources.md has examples.
    """
    tasks_source = load_source(source, plugins=state.plugins)
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    run = None if run_file is None else read_run(Path(run_file))
    rules = CallRules(
        max_calls=max_calls,
        max_tokens=max_episode_tokens,
        sampling=CallSampling(temperature=temperature, max_tokens=max_tokens),
    )

    async def roll_out() -> bool:
        async with AsyncSwarmClient(settings.url, token) as client, tasks_source:
            report = await train_source(
                tasks_source,
                client=client,
                config=run,
                episodes_per_task=group,
                episode_timeout=timeout,
                curriculum=None if curriculum is None else Curriculum(share=curriculum),
                rules=rules,
                **options,
            )
        click.echo(str(report))
        return not report.failures

    if not asyncio.run(roll_out()):
        raise SystemExit(_FAILED)
