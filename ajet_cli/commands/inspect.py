"""``ajet inspect``."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from ajet_cli.inspect.files import new_file
from ajet_cli.inspect.terminal import abort_lines, episode_table, episode_tree, fork_list
from ajet_cli.output import plain, table_console
from ajet_cli.run_paths import RunPath
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_server.observe.forks import ForkSummary
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import episode_timelines, merge_episode
from ajet_server.page.page_data import MAX_TOKENS, PageData
from ajet_server.page.summary import EpisodeSummary, summarise
from ajet_server.page.token_texts import TokenTexts
from ajet_server.page.viewer_page import page
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.run_facts import RunFacts
from ajet_server.store.store_reader import EpisodeChoice, StoreReader

State = Literal["open", "prepared", "ended", "aborted"]

_LIMIT = 20


@click.command()
@click.argument("run", type=RunPath())
@click.argument("episode", required=False)
@click.option(
    "--limit", type=click.IntRange(1), help=f"Maximum number of episodes.  [default: {_LIMIT}]"
)
@click.option(
    "--step", type=click.IntRange(1), help="Only episodes in the batch of this training step."
)
@click.option("--refused", is_flag=True, help="Only episodes in batches that the trainer refused.")
@click.option("--task", help="Only episodes of this task.")
@click.option(
    "--state",
    type=click.Choice(["open", "prepared", "ended", "aborted"]),
    help="Only episodes in this state (prepared: part of a joint episode that waits for the "
    "arbiter).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one page with the tokens of EPISODE, or of all episodes of --step.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=MAX_TOKENS,
    show_default=True,
    help="Maximum number of tokens on the page.",
)
@click.option(
    "--tokenizer",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the tokenizer.  [default: the run's model]",
)
@config_option
@pass_state
def inspect(
    cli: CliState,
    *,
    run: Path,
    episode: str | None,
    limit: int | None,
    step: int | None,
    refused: bool,
    task: str | None,
    state: State | None,
    as_json: bool,
    html: Path | None,
    max_tokens: int,
    tokenizer: Path | None,
) -> None:
    """Inspect the episodes of a run, while its server runs or afterwards.

    RUN is a run directory. Without EPISODE, list the newest episodes. With EPISODE (the beginning
    of an id is enough), show the timelines of the episode: the messages and their roles, the
    sampled text, and the logprobs, advantages and rewards.
    """
    if as_json and html is not None:
        raise click.UsageError("--json and --html cannot be combined")
    choice = EpisodeChoice(state, task, step, refused=refused)
    if episode is not None and (limit is not None or choice != EpisodeChoice()):
        raise click.UsageError(
            "--limit, --step, --refused, --task and --state select episodes and cannot be "
            "combined with EPISODE"
        )
    if html is not None and episode is None and step is None and not refused:
        raise click.UsageError(
            "--html needs an EPISODE, or the --step (or --refused) whose episodes to show"
        )
    store = store_of_run(run, cli.settings().store, cli.plugins)
    run_dir = run if run.is_dir() else run.parent

    async def show() -> None:
        async with StoreReader(store, run) as reader:
            record = await reader.run()
            facts = RunFacts.of(record)
            merger = RunMerger.of(record, cli.plugins, run_dir)
            inspection = _Inspection(reader, facts, merger, tokenizer or facts.model)
            if step is not None:
                await _check_step(reader, step)
            if episode is not None:
                ids = [await reader.find(episode)]
            elif html is not None:
                ids = await _chosen(reader, choice, limit)
            if html is not None:
                await inspection.write_page(html, ids, step, max_tokens)
            elif episode is not None:
                await inspection.show_episode(ids[0], as_json)
            else:
                await inspection.show_list(choice, limit or _LIMIT, as_json)

    asyncio.run(show())


async def _check_step(reader: StoreReader, step: int) -> None:
    """:raises RequestError: the run has no such step."""
    batches = [*await reader.batches(), *await reader.refused()]
    steps = sorted({batch.step for batch in batches})
    if step not in steps:
        # Steps are consecutive, except where batches were refused.
        there = f"its steps are {steps[0]} to {steps[-1]}" if steps else "it has no steps yet"
        raise RequestError(f"the run in {reader.run_dir} has no step {step}: {there}")


async def _chosen(reader: StoreReader, choice: EpisodeChoice, limit: int | None) -> list[str]:
    ids = await reader.episode_ids(choice, limit=limit)
    if not ids:
        batch = "a refused batch" if choice.refused else f"step {choice.step}"
        raise RequestError(
            f"no episode of {reader.run_dir} belongs to {batch} and matches the other options"
        )
    return ids


class _Inspection:
    """The episodes of one store, with facts about the run."""

    def __init__(
        self, reader: StoreReader, facts: RunFacts, merger: RunMerger, model: Path | None
    ) -> None:
        self._reader = reader
        self._facts = facts
        self._merger = merger
        self._model = model

    async def show_list(self, choice: EpisodeChoice, limit: int, as_json: bool) -> None:
        """Print a table of episodes, newest first, and a summary of their forks."""
        ids = await self._reader.episode_ids(choice, newest_first=True, limit=limit)
        episodes, forks = await summarise(self._reader, ids, self._merger)
        total = await self._reader.count(choice)
        refused = await self._reader.refused()
        if as_json:
            content = {
                "run": self._facts.run_id,
                "total": total,
                "episodes": [episode.numbers for episode in episodes],
                "forks": forks.sentences(),
                "refused": [
                    {"batch_id": b.batch_id, "step": b.step, "reason": b.refused} for b in refused
                ],
            }
            click.echo(json.dumps(content, indent=2))
            return
        rows: list[RenderableType] = [episode_table(episodes)] if episodes else []
        drifted = sum(episode.tokens_drifted for episode in episodes)
        rows += [
            plain(
                f"the trainer refused the first batch of step {batch.step}, {batch.batch_id} "
                f"({len(batch.episode_ids)} episodes): {batch.refused}",
                "red",
            )
            for batch in refused
        ]
        rows += _footer(len(episodes), total, forks, drifted)
        rows += abort_lines(episodes)
        if episodes:
            run = shlex.quote(str(self._reader.run_dir))
            newest = shlex.quote(episodes[0].episode_id)
            if newest.startswith("-"):
                newest = f"-- {newest}"
            rows.append(plain(f"to see one of them: ajet inspect {run} {newest}", "dim"))
        _print(table_console(), *rows)

    async def show_episode(self, episode_id: str, as_json: bool) -> None:
        """Print the tree of one episode and its forks."""
        stored = await self._reader.load(episode_id)
        merged = merge_episode(episode_id, stored.calls, self._merger)
        timelines = episode_timelines(stored.record, merged, stored.scores)
        if as_json:
            click.echo(timelines.model_dump_json(indent=2))
            return
        texts = TokenTexts.load(self._model)
        problem = Text(f"\ntokens are shown as ids: {texts.problem}", style="yellow")
        _print(
            table_console(),
            episode_tree(timelines, texts),
            Text("\nforks", style="bold"),
            fork_list(timelines),
            *([problem] if texts.problem else []),
        )

    async def write_page(
        self, path: Path, episode_ids: Sequence[str], step: int | None, max_tokens: int
    ) -> None:
        """Write a page about episodes."""
        about = f"step {step}" if step is not None else f"{len(episode_ids)} episodes"
        if step is None and len(episode_ids) == 1:
            about = f"episode {episode_ids[0]}"
        title = f"{self._facts.run_id or self._reader.run_dir.name}: {about}"
        data = PageData(title, self._facts.run_id, TokenTexts.load(self._model), max_tokens)
        forks = ForkSummary()
        for episode_id in episode_ids:
            stored = await self._reader.load(episode_id)
            merged = merge_episode(episode_id, stored.calls, self._merger)
            forks.add(merged.seen, merged.forks)
            timelines = episode_timelines(stored.record, merged, stored.scores)
            data.add(EpisodeSummary.of(stored, merged), timelines)
        content = page(data.as_json(forks.sentences())).encode()
        with new_file(path, replace=True) as file:
            file.write_bytes(content)
        click.echo(f"wrote {path} ({len(content) / 2**20:.1f} MiB, {len(episode_ids)} episodes)")
        if data.tokens_cut:
            click.echo(
                f"{data.tokens_cut} tokens are left out: raise --max-tokens, or choose fewer "
                "episodes"
            )
        if data.texts.problem:
            click.echo(f"tokens are shown as ids: {data.texts.problem}")


def _footer(shown: int, total: int, forks: ForkSummary, drifted: int) -> list[RenderableType]:
    if not total:
        return [Text("no episodes", style="dim")]
    of = f" of {total}" if shown < total else ""
    rows: list[RenderableType] = [Text(f"\n{shown}{of} episodes", style="dim")]
    sentences = forks.sentences()
    rows += [plain(sentence) for sentence in sentences]
    if not sentences:
        rows.append(Text("no tokens are recomputed", style="dim"))
    if drifted:
        rows.append(
            Text(
                f"{drifted} sampled tokens would have changed on the way through text; they "
                "were kept"
            )
        )
    return rows


def _print(console: Console, *rows: RenderableType) -> None:
    console.print(Group(*rows))
