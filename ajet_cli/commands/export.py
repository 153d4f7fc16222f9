"""``ajet export``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import click

from ajet_cli.inspect.conversations import ConversationRows, completion_rows, message_rows
from ajet_cli.inspect.files import new_file
from ajet_cli.inspect.sample_files import FILE_FORMATS, file_format, open_writer
from ajet_cli.inspect.samples import Row, RowsOf, RowType, row_type, rows
from ajet_cli.run_paths import RunPath
from ajet_cli.sft.best_episodes import best_of
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_core.interfaces import EpisodeKind, EpisodeState
from ajet_server.observe.run_merger import RunMerger
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.run_facts import RunFacts
from ajet_server.store.store_reader import EpisodeChoice, StoredEpisode, StoreReader


@click.command()
@click.argument("run", type=RunPath())
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "given_format",
    type=click.Choice(FILE_FORMATS),
    help="Format of the file.  [default: by its suffix]",
)
@click.option(
    "--rows",
    "rows_of",
    type=click.Choice(["timelines", "calls", "messages", "completions"]),
    default="timelines",
    show_default=True,
    help="Content of a row: a path through the token tree, or a model call, in tokens; a "
    "conversation in OpenAI's form, or a model call in TRL's, in messages.",
)
@click.option("--step", type=click.IntRange(1), help="Only the batch of this training step.")
@click.option("--task", help="Only episodes of this task.")
@click.option(
    "--state",
    type=click.Choice(["open", "prepared", "ended", "aborted", "any"]),
    default="ended",
    show_default=True,
    help="Only these episodes.",
)
@click.option(
    "--kind",
    type=click.Choice(["train", "eval", "any"]),
    default="train",
    show_default=True,
    help="Only episodes of this kind.",
)
@click.option(
    "--best",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Only this share of the episodes, those with the highest rewards.",
)
@click.option("--min-reward", type=float, help="Only episodes with at least this reward.")
@click.option("--top", type=click.IntRange(1), help="Only so many episodes of each task, the best.")
@click.option("--text", is_flag=True, help="Add the text of the tokens.")
@click.option(
    "--tokenizer",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the tokenizer for --text.  [default: the run's model]",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@config_option
@pass_state
def export(
    cli: CliState,
    *,
    run: Path,
    out: Path,
    given_format: str | None,
    rows_of: RowsOf | ConversationRows,
    step: int | None,
    task: str | None,
    state: str,
    kind: str,
    best: float,
    min_reward: float | None,
    top: int | None,
    text: bool,
    tokenizer: Path | None,
    force: bool,
) -> None:
    """Write the samples of a run to the file OUT for other tools, as JSON lines or Parquet.

    RUN is a run directory; its server may be running. Each sampled token is trained in exactly one
    row: where its loss_mask is 1, or in an answer that has no weight 0.
    """
    file_type = file_format(out, given_format)
    in_messages = rows_of in {"messages", "completions"}
    if in_messages and (file_type != "jsonl" or text):
        raise RequestError(f"--rows {rows_of} are text already, and are written as JSON lines")
    choice = EpisodeChoice(
        None if state == "any" else cast("EpisodeState", state),
        task,
        step,
        None if kind == "any" else cast("EpisodeKind", kind),
    )
    store = store_of_run(run, cli.settings().store, cli.plugins)
    run_dir = run if run.is_dir() else run.parent

    async def write() -> None:
        async with StoreReader(store, run) as reader:
            record = await reader.run()
            facts = RunFacts.of(record)
            merger = RunMerger.of(record, cli.plugins, run_dir)
            untrained = facts.untrained_agents
            columns: RowType = {}
            rows_in: Callable[[StoredEpisode], Iterator[Row]]
            if rows_of == "messages":
                rows_in = partial(message_rows, untrained_agents=untrained)
            elif rows_of == "completions":
                rows_in = partial(completion_rows, untrained_agents=untrained)
            else:
                columns = row_type(rows_of, text=text)
                texts = _texts(tokenizer or facts.model) if text else None
                rows_in = partial(
                    rows, of=rows_of, merger=merger, texts=texts, untrained_agents=untrained
                )
            # The newest first among equal rewards.
            records = list(reversed(await reader.records(choice)))
            least = -math.inf if min_reward is None else min_reward
            good = set(best_of(records, share=best, least=least, top=top)) if records else set()
            episode_ids = [record.episode_id for record in reversed(records)]
            episode_ids = [episode_id for episode_id in episode_ids if episode_id in good]
            if not episode_ids:
                raise RequestError(f"nothing to export: {run} has no such episodes")
            written = 0
            with (
                new_file(out, replace=force) as file,
                open_writer(file, file_type, columns) as writer,
            ):
                for episode_id in episode_ids:
                    for row in rows_in(await reader.load(episode_id)):
                        writer.write(row)
                        written += 1
        click.echo(f"wrote {out} ({written} rows of {len(episode_ids)} episodes)")

    asyncio.run(write())


def _texts(directory: Path | None) -> TokenTexts:
    texts = TokenTexts.load(directory)
    if texts.problem:
        raise RequestError(
            f"--text needs the run's tokenizer: {texts.problem}; choose another with --tokenizer"
        )
    return texts
