"""``ajet eval``."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ajet_cli.output import echo_plain
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.interfaces import ModelEndpoint
from ajet_sources import (
    EpisodeFile,
    EvaluatedEpisode,
    ModelEvaluation,
    chosen_tasks,
    compared,
    evaluate_source,
    load_source,
    rescore,
)

_FAILED = 1


@click.command("eval")
@click.argument("source")
@click.option("--model", "models", multiple=True, required=True, help="Repeatable.")
@click.option("--base-url", metavar="URL", help="Of the endpoint.  [default: OPENAI_BASE_URL]")
@click.option("--api-key", metavar="KEY", help="Its key.  [default: OPENAI_API_KEY]")
@click.option("--split", metavar="NAME", help="Split of the tasks.  [default: the last]")
@click.option("--limit", type=click.IntRange(1), help="Take the first tasks only.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Per task.")
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds of an episode.")
@click.option(
    "--retries", type=click.IntRange(0), default=1, show_default=True, help="Per failure."
)
@click.option("--temperature", type=float, help="Sampling temperature.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens of an answer.")
@click.option("--pass-reward", type=float, help="Passed from here on.  [default: the greatest]")
@click.option("--out", metavar="FILE", help="Keep the episodes in this file, as JSON lines.")
@click.option("--resume", is_flag=True, help="Continue the evaluation in the file of --out.")
@click.option("--rescore", "again", is_flag=True, help="Score the answers of --out again.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@config_option
@pass_state
def evaluate(
    state: CliState,
    /,
    source: str,
    *,
    models: tuple[str, ...],
    base_url: str | None,
    api_key: str | None,
    split: str | None,
    limit: int | None,
    temperature: float | None,
    max_tokens: int | None,
    pass_reward: float | None,
    out: str | None,
    resume: bool,
    again: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure models on the tasks of SOURCE.

    The endpoint is any that answers chat completions; no swarm server is needed. With several
    models, each is compared with the first. Ends with 1 if an episode failed.
    """
    url = base_url or os.environ.get("OPENAI_BASE_URL", "")
    if not url and not again:
        raise click.UsageError(
            "pass the endpoint with --base-url URL, such as http://127.0.0.1:8000/v1"
        )
    if (resume or again) and out is None:
        raise click.UsageError("--resume and --rescore need the file of episodes: --out FILE")
    file = EpisodeFile(None if out is None else Path(out))
    kept = file.read()
    if kept and not (resume or again):
        raise click.UsageError(f"{out} has episodes: add --resume, --rescore, or name another file")
    given = {"temperature": temperature, "max_tokens": max_tokens}
    endpoints = [
        ModelEndpoint(
            base_url=url.rstrip("/"),
            api_key=api_key or os.environ.get("OPENAI_API_KEY", "none"),
            model=model,
            sampling={name: value for name, value in given.items() if value is not None},
        )
        for model in models
    ]
    tasks_source = load_source(source, plugins=state.plugins)

    async def evaluated() -> list[EvaluatedEpisode]:
        async with tasks_source:
            tasks = chosen_tasks(
                tasks_source, list(tasks_source.splits())[-1] if split is None else split, limit
            )
            if again:
                scored = await rescore(tasks_source, tasks, kept)
                file.write(scored)
                return scored
            # Failed episodes are tried again, and must not be in the file twice.
            file.write([episode for episode in kept if episode.reward is not None])
            return await evaluate_source(
                tasks_source, tasks, endpoints, kept=kept, on_episode=file.add, **options
            )

    episodes = asyncio.run(evaluated())
    results = compared(
        episodes, models, reward_range=tasks_source.reward_range, pass_reward=pass_reward
    )
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=1))
    else:
        for result in results:
            echo_plain(_line(result))
        for episode in [episode for episode in episodes if episode.error][:1]:
            failure = f"the first failure (task {episode.task_id!r}): {episode.error}"
            echo_plain(failure, err=True)
    if any(result.failed for result in results):
        raise SystemExit(_FAILED)


def _line(result: ModelEvaluation) -> str:
    if result.reward is None:
        return f"{result.model}: no reward, {result.failed} episodes failed"
    parts = [f"{result.model}: reward {result.reward:.4f}{_interval(result.interval)}"]
    if result.difference is not None:
        parts.append(
            f"{result.difference:+.4f}{_interval(result.difference_interval)} to the first"
        )
    parts += [f"pass@{k} {share:.4f}" for k, share in result.pass_at.items()]
    parts += [f"{name} {value:.4f}" for name, value in result.components.items()]
    parts.append(f"{result.tasks} tasks, {result.episodes} episodes")
    if result.failed:
        parts.append(f"{result.failed} failed")
    return ", ".join(parts)


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" [{ends[0]:.4f}, {ends[1]:.4f}]"
