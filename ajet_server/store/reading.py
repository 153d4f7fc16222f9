"""The queries of the SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeRecord,
    EpisodeState,
    EvaluationCount,
    GroupCount,
    RunRecord,
    StepRecord,
)
from ajet_core.timeline import Call
from ajet_server.averages import LARGEST_TERM
from ajet_server.store import codec

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
# In the order of `EvaluationCount`; in that of the index, too.
_EVALUATIONS = (
    "SELECT client_id, tag, claim_version, task_id, sum(state = 'ended'), "
    "sum(state = 'ended' AND reward >= ?), sum(state = 'ended' AND mixed), "
    # Bounded, because a store may hold rewards whose sum is infinite.
    f"total(CASE state WHEN 'ended' THEN min(max(reward, -{LARGEST_TERM}), {LARGEST_TERM}) END), sum(state = 'aborted') "
    "FROM episodes INDEXED BY episodes_evaluated WHERE kind = 'eval' AND state != 'open' "
    "GROUP BY claim_version, client_id, tag, task_id ORDER BY claim_version"
)


def run(connection: sqlite3.Connection) -> RunRecord | None:
    """The run, if there is one."""
    row = connection.execute(f"SELECT {codec.RUN_COLUMNS} FROM run").fetchone()
    return None if row is None else codec.run_from_row(row)


def episode(connection: sqlite3.Connection, episode_id: str) -> EpisodeRecord | None:
    """One episode."""
    row = connection.execute(f"{_EPISODES} WHERE episode_id = ?", (episode_id,)).fetchone()
    return None if row is None else codec.episode_from_row(row)


def claimed(connection: sqlite3.Connection, claim_hash: str) -> EpisodeRecord | None:
    """The episode of a claim."""
    # Said aloud so that the index of episodes with a claim is used.
    row = connection.execute(
        f"{_EPISODES} WHERE claim_hash = ? AND claim_hash != ''", (claim_hash,)
    ).fetchone()
    return None if row is None else codec.episode_from_row(row)


def joint_parts(
    connection: sqlite3.Connection, joint_ids: Sequence[str]
) -> dict[str, EpisodeRecord]:
    """The parts of joint episodes, by joint id."""
    found = {}
    for joint_id in joint_ids:
        row = connection.execute(f"{_EPISODES} WHERE joint_id = ?", (joint_id,)).fetchone()
        if row is not None:
            found[joint_id] = codec.episode_from_row(row)
    return found


def episodes(
    connection: sqlite3.Connection, state: EpisodeState | None, batched: bool | None
) -> list[EpisodeRecord]:
    """Episodes in the order they were added."""
    conditions = []
    parameters: list[str] = []
    if state is not None:
        conditions.append("state = ?")
        parameters.append(state)
    if batched is not None:
        conditions.append(f"batch_id IS {'NOT ' if batched else ''}NULL")
    elif state in ("open", "prepared"):
        # True of every such episode; said aloud so that the index of the unbatched ones is used.
        conditions.append("batch_id IS NULL")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = connection.execute(f"{_EPISODES}{where} ORDER BY id", parameters)
    return [codec.episode_from_row(row) for row in rows]


def calls(connection: sqlite3.Connection, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
    """Calls by episode, an empty list for an unknown one."""
    return {
        episode_id: codec.calls_from_rows(episode_id, connection.execute(_CALLS, (episode_id,)))
        for episode_id in episode_ids
    }


def batches(connection: sqlite3.Connection, after_step: int, refused: bool) -> list[BatchRecord]:
    """Batches of later steps, in order of step: those to train, or those that were refused."""
    rows = connection.execute(
        "SELECT batch_id, step, created_at, refused, credit FROM batches "
        "WHERE step > ? AND (refused != '') = ? ORDER BY step, id",
        (after_step, refused),
    ).fetchall()
    return [
        codec.batch_from_row(
            row, _members(connection, row[0], "ended"), _members(connection, row[0], "aborted")
        )
        for row in rows
    ]


def group_counts(
    connection: sqlite3.Connection, groups: Sequence[str], kind: EpisodeKind, client_id: str
) -> dict[str, GroupCount]:
    """How many episodes of a client each group has, by state."""
    found = {}
    for group in groups:
        rows = connection.execute(
            "SELECT iif(state = 'prepared', 'open', state), count(*) FROM episodes "
            "WHERE group_name = ? AND kind = ? AND client_id = ? GROUP BY 1",
            (group, kind, client_id),
        )
        found[group] = GroupCount(**dict(rows.fetchall()))
    return found


def evaluation_counts(connection: sqlite3.Connection, pass_reward: float) -> list[EvaluationCount]:
    """Evaluation episodes that are over, by client, tag, policy version and task."""
    rows = connection.execute(_EVALUATIONS, (pass_reward,))
    return [EvaluationCount(*row) for row in rows]


def steps(connection: sqlite3.Connection) -> list[StepRecord]:
    """All steps, in order."""
    rows = connection.execute(f"SELECT {codec.STEP_COLUMNS} FROM steps ORDER BY step")
    return [codec.step_from_row(row) for row in rows]


def scores(connection: sqlite3.Connection, episode_id: str) -> dict[str, CallScore]:
    """The score of each call of an episode in the last step that trained it, by call id."""
    # In order of step, so that the last one stays.
    rows = connection.execute(_SCORES, (episode_id,))
    return {row[0]: codec.score_from_row(row) for row in rows}


def _members(connection: sqlite3.Connection, batch_id: str, state: EpisodeState) -> list[str]:
    rows = connection.execute(
        "SELECT episode_id FROM episodes WHERE batch_id = ? AND state = ? ORDER BY batch_position",
        (batch_id, state),
    )
    return [episode_id for (episode_id,) in rows]
