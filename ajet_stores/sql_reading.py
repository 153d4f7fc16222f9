"""The queries of a store on a SQL database, in the SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Protocol

from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    CallTotals,
    EpisodeQuery,
    EpisodeRecord,
    EpisodeState,
    RunRecord,
    StepRecord,
)
from ajet_core.timeline import Call
from ajet_stores import codec

__all__ = [
    "Execute",
    "batches",
    "call_totals",
    "calls",
    "episode",
    "episode_rows",
    "run",
    "scores",
    "steps",
]


class Execute(Protocol):
    """Runs a statement with ``?`` as placeholders, and returns its rows."""

    def __call__(self, statement: str, parameters: Sequence[object] = (), /) -> Iterable[codec.Row]:
        """Run the statement."""


# ruff: noqa: S608 - the texts are put together from constants of this package alone.
_EPISODES = f"SELECT {codec.EPISODE_COLUMNS} FROM episodes"
_CALLS = (
    f"SELECT id, {codec.CALL_COLUMNS} FROM calls WHERE episode = "
    "(SELECT id FROM episodes WHERE episode_id = ?) ORDER BY id"
)
_SCORES = (
    "SELECT call_id, advantage, scores.logprobs FROM scores JOIN calls ON calls.id = scores.call "
    "WHERE calls.episode = (SELECT id FROM episodes WHERE episode_id = ?) ORDER BY step"
)


def run(execute: Execute) -> RunRecord | None:
    """Return the run, None if there is none."""
    row = next(iter(execute(f"SELECT {codec.RUN_COLUMNS} FROM run")), None)
    return None if row is None else codec.run_from_row(row)


def episode(execute: Execute, episode_id: str) -> EpisodeRecord | None:
    """Return an episode, None if it is unknown."""
    rows = execute(f"{_EPISODES} WHERE episode_id = ?", (codec.pack_text(episode_id),))
    row = next(iter(rows), None)
    return None if row is None else codec.episode_from_row(row)


def episode_rows(
    execute: Execute, query: EpisodeQuery, after: int | None, limit: int
) -> list[tuple[int, codec.Row]]:
    """Return a page of (position, row) of episodes, in the order they were added or in reverse.

    :param after: the position of the previous page's last row; None for the first page.
    """
    conditions = []
    parameters: list[str | int] = []
    for column in ("state", "kind", "task_id"):
        if (wanted := getattr(query, column)) is not None:
            conditions.append(f"{column} = ?")
            parameters.append(codec.pack_text(wanted))
    if query.state in ("open", "prepared"):
        # True of all such episodes; stating it lets SQLite use the index of unbatched episodes.
        conditions.append("batch_id IS NULL")
    if query.prefix:
        conditions.append("substr(episode_id, 1, ?) = ?")
        prefix = codec.pack_text(query.prefix)
        parameters += [len(prefix), prefix]
    if after is not None:
        conditions.append(f"id {'<' if query.newest_first else '>'} ?")
        parameters.append(after)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "DESC" if query.newest_first else "ASC"
    rows = execute(
        f"SELECT id, {codec.EPISODE_COLUMNS} FROM episodes{where} ORDER BY id {order} LIMIT ?",
        [*parameters, limit],
    )
    return [(row[0], row[1:]) for row in rows]


def calls(execute: Execute, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
    """Return calls by episode, an empty list for an unknown one."""
    return {
        episode_id: codec.calls_from_rows(
            episode_id, execute(_CALLS, (codec.pack_text(episode_id),))
        )
        for episode_id in episode_ids
    }


def batches(execute: Execute, after_step: int, refused: bool) -> list[BatchRecord]:
    """Return batches of later steps in order of step: those to train, or those refused."""
    rows = list(
        execute(
            f"SELECT {codec.BATCH_COLUMNS} FROM batches "
            "WHERE step > ? AND (refused != '') = ? ORDER BY step, id",
            (after_step, refused),
        )
    )
    return [
        codec.batch_from_row(
            row, _members(execute, row[0], "ended"), _members(execute, row[0], "aborted")
        )
        for row in rows
    ]


def steps(execute: Execute) -> list[StepRecord]:
    """Return all steps in order."""
    rows = execute(f"SELECT {codec.STEP_COLUMNS} FROM steps ORDER BY step")
    return [codec.step_from_row(row) for row in rows]


def call_totals(execute: Execute) -> CallTotals:
    """Return totals over all calls."""
    stored: dict[str, int] = dict(execute("SELECT name, value FROM totals"))
    return CallTotals(*(stored.get(field.name, 0) for field in fields(CallTotals)))


def scores(execute: Execute, episode_id: str) -> dict[str, CallScore]:
    """Return the score of each call of an episode in the last step that trained it, by call id."""
    # The rows are in order of step, so the last one remains.
    rows = execute(_SCORES, (codec.pack_text(episode_id),))
    return {row[0]: codec.score_from_row(row) for row in rows}


def _members(execute: Execute, batch_id: str, state: EpisodeState) -> list[str]:
    rows = execute(
        "SELECT episode_id FROM episodes WHERE batch_id = ? AND state = ? ORDER BY batch_position",
        (batch_id, state),
    )
    return [episode_id for (episode_id,) in rows]
