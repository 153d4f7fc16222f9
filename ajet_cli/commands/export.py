"""``ajet export``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import click

from ajet_cli.inspect.files import new_file
from ajet_cli.inspect.sample_files import FILE_FORMATS, file_format, open_writer
from ajet_cli.inspect.samples import RowsOf, row_type, rows
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_core.interfaces import EpisodeKind, EpisodeState
from ajet_server.observe.run_merger import RunMerger
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.run_facts import RunFacts
from ajet_server.store.store_reader import EpisodeChoice, StoreReader


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
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
    type=click.Choice(["timelines", "calls"]),
    default="timelines",
    show_default=True,
    help="Content of a row: a path through the token tree, or a model call.",
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
    rows_of: RowsOf,
    step: int | None,
    task: str | None,
    state: str,
    kind: str,
    text: bool,
    tokenizer: Path | None,
    force: bool,
) -> None:
    """Write the samples of a run to the file OUT for other tools, as JSON lines or Parquet.

    RUN is a run directory; its server may be running. Each sampled token has loss_mask 1 in exactly
    one row, and is trained there.
    """
    file_type = file_format(out, given_format)
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
            texts = _texts(tokenizer or facts.model) if text else None
            episode_ids = await reader.episode_ids(choice)
            if not episode_ids:
                raise RequestError(f"nothing to export: {run} has no such episodes")
            written = 0
            with (
                new_file(out, replace=force) as file,
                open_writer(file, file_type, row_type(rows_of, text=text)) as writer,
            ):
                for episode_id in episode_ids:
                    stored = await reader.load(episode_id)
                    for row in rows(stored, rows_of, merger, texts, facts.untrained_agents):
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
