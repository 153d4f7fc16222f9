"""The writes of the SQLite store. All of it runs in the committing thread, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeRecord,
    EpisodeState,
    RunRecord,
    StepRecord,
)
from ajet_core.protocol import ABORT_CAUSES
from ajet_core.timeline import Call
from ajet_server.store import codec
from ajet_server.store.group_commit import savepoint
from ajet_server.store.reading import episode as read_episode

TOTAL_NAMES = (
    "episodes",
    "episodes_ended",
    "episodes_aborted",
    *(f"aborted_{cause}" for cause in ABORT_CAUSES),
    "joint_ended",
    "joint_aborted",
    "calls",
    "tokens_raw",
    "tokens_sampled",
)


def _insert(table: str, columns: str, verb: str = "INSERT") -> str:
    marks = ", ".join("?" * (columns.count(",") + 1))
    return f"{verb} INTO {table} ({columns}) VALUES ({marks})"


_INSERT_EPISODE = _insert("episodes", codec.EPISODE_COLUMNS)
_INSERT_CALL = _insert("calls", codec.CALL_COLUMNS)
_INSERT_BATCH = _insert("batches", "batch_id, step, created_at, credit")
_INSERT_SCORE = _insert("scores", codec.SCORE_COLUMNS)
_EPISODE_ID = "SELECT id FROM episodes WHERE episode_id = ?"
_CALL_ID = "SELECT id FROM calls WHERE call_id = ?"
# Calls and episodes whose rows need not be looked for; 16,384 open episodes find theirs.
_KNOWN_ROWS = 16_384
_REPLACE_STEP = _insert("steps", codec.STEP_COLUMNS, "REPLACE")
_REPLACE_RUN = _insert("run", f"one, {codec.RUN_COLUMNS}", "REPLACE")
_REPLACE_TOTAL = _insert("totals", "name, value", "REPLACE")
_WRITE_OUTCOME = (
    "UPDATE episodes SET state = ?, reward = ?, components = ?, call_rewards = ?, "
    "agent_rewards = ?, metadata = ?, reason = ?, finished_at = ?, cause = ?, final = ?, mixed = ? "
    "WHERE episode_id = ? AND state "
)
_PREPARE_EPISODE = f"{_WRITE_OUTCOME} = 'open'"
_FINISH_EPISODE = f"{_WRITE_OUTCOME} IN ('open', 'prepared')"
_BATCH_EPISODE = (
    "UPDATE episodes SET batch_id = ?, batch_position = ? "
    "WHERE episode_id = ? AND state = ? AND batch_id IS NULL"
)
_MOVE_EPISODE = (
    "UPDATE episodes SET batch_id = ?, batch_position = ? "
    "WHERE episode_id = ? AND batch_id = ? AND state = 'ended'"
)


class StoreWriter:
    """Applies writes to the connection, and keeps the totals.

    :ivar totals: `SampleStore.counters` as of the last commit; replaced, never changed, so that other
        threads may read it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        stored = dict(connection.execute("SELECT name, value FROM totals"))
        self.totals: dict[str, int] = {name: stored.get(name, 0) for name in TOTAL_NAMES}
        self._pending = dict(self.totals)
        # By query, row ids of the latest episodes and calls, which the next calls belong to and go on from.
        self._known: dict[str, dict[str, int]] = {_EPISODE_ID: {}, _CALL_ID: {}}

    def before_commit(self) -> None:
        """Write the totals that changed: once for the whole transaction."""
        changed = [(n, v) for n, v in self._pending.items() if v != self.totals[n]]
        if changed:
            self._connection.executemany(_REPLACE_TOTAL, changed)

    def committed(self) -> None:
        """Show the totals."""
        self.totals = dict(self._pending)

    def rolled_back(self) -> None:
        """Forget what the transaction said."""
        self._pending = dict(self.totals)
        for known in self._known.values():
            known.clear()

    def put_run(self, run: RunRecord) -> None:
        """Write or replace the run."""
        self._connection.execute(_REPLACE_RUN, (1, *codec.run_row(run)))

    def add_episode(self, episode: EpisodeRecord) -> None:
        """Add an episode."""
        try:
            self._connection.execute(_INSERT_EPISODE, codec.episode_row(episode))
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add episode {episode.episode_id}: {error}") from error
        self._pending["episodes"] += 1
        self._count_outcome(episode)

    def prepare_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write the outcome that an open episode is to have."""
        if episode.state != "prepared":
            raise StoreError(f"episode {episode.episode_id} is {episode.state}, not prepared")
        return self._write_outcome(_PREPARE_EPISODE, episode)[0]

    def finish_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an outcome, unless there is one."""
        if episode.state in ("open", "prepared"):
            raise StoreError(
                f"episode {episode.episode_id} has no outcome to store: it is {episode.state}"
            )
        stored, changed = self._write_outcome(_FINISH_EPISODE, episode)
        if changed:
            self._count_outcome(stored)
        return stored

    def _write_outcome(self, statement: str, episode: EpisodeRecord) -> tuple[EpisodeRecord, bool]:
        """The episode as it is stored now, and whether that is what was asked for."""
        cursor = self._connection.execute(
            statement,
            (
                *codec.outcome_row(episode),
                episode.cause,
                int(episode.final),
                int(episode.mixed),
                episode.episode_id,
            ),
        )
        stored = read_episode(self._connection, episode.episode_id)
        if stored is None:
            raise StoreError(f"cannot finish episode {episode.episode_id}: it is not in the store")
        return stored, bool(cursor.rowcount)

    def give_up(self, episode_id: str) -> EpisodeRecord:
        """Note that an aborted episode is not tried again."""
        self._connection.execute(
            "UPDATE episodes SET final = 1 WHERE episode_id = ? AND state = 'aborted'",
            (episode_id,),
        )
        stored = read_episode(self._connection, episode_id)
        if stored is None or stored.state != "aborted":
            what = "not in the store" if stored is None else f"{stored.state}, not aborted"
            raise StoreError(f"cannot give up episode {episode_id}: it is {what}")
        return stored

    def add_call(self, call: Call) -> None:
        """Add a call, its prompt as the difference to its base's tokens."""
        episode = self._row_id(_EPISODE_ID, call.episode_id)
        if episode is None:
            raise StoreError(
                f"cannot add call {call.call_id}: its episode {call.episode_id} is not in the store"
            )
        base = None if call.base is None else self._row_id(_CALL_ID, call.base.call_id)
        try:
            row = codec.call_row(call, episode, base)
            inserted = self._connection.execute(_INSERT_CALL, row)
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add call {call.call_id}: {error}") from error
        if inserted.lastrowid is not None:
            self._learn(_CALL_ID, call.call_id, inserted.lastrowid)
        sampled = len(call.sampled_ids)
        pending = self._pending
        pending["calls"] += 1
        pending["tokens_raw"] += call.length
        pending["tokens_sampled"] += sampled

    def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch and give it its episodes."""
        connection = self._connection
        with savepoint(connection):
            self._insert_batch(batch)
            self._give_episodes(batch.batch_id, batch.episode_ids, "ended")
            self._give_episodes(batch.batch_id, batch.aborted_ids, "aborted")

    def _insert_batch(self, batch: BatchRecord) -> None:
        try:
            self._connection.execute(_INSERT_BATCH, codec.batch_row(batch))
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add batch {batch.batch_id}: {error}") from error

    def _give_episodes(
        self, batch_id: str, episode_ids: Sequence[str], state: EpisodeState
    ) -> None:
        for position, episode_id in enumerate(episode_ids):
            row = (batch_id, position, episode_id, state)
            if not self._connection.execute(_BATCH_EPISODE, row).rowcount:
                why = self._why_not_batched(episode_id, state)
                raise StoreError(f"cannot add batch {batch_id}: {why}")

    def refuse_batch(self, batch_id: str, reason: str) -> None:
        """Note why a batch is not to be trained."""
        cursor = self._connection.execute(
            "UPDATE batches SET refused = ? WHERE batch_id = ?", (reason, batch_id)
        )
        if not cursor.rowcount:
            raise StoreError(f"cannot refuse batch {batch_id}: it is not in the store")

    def split_batch(self, batch_id: str, aside: BatchRecord) -> None:
        """Move episodes of a batch to another one that is refused."""
        connection = self._connection
        with savepoint(connection):
            self._insert_batch(aside)
            self.refuse_batch(aside.batch_id, aside.refused)
            for position, episode_id in enumerate(aside.episode_ids):
                row = (aside.batch_id, position, episode_id, batch_id)
                if not connection.execute(_MOVE_EPISODE, row).rowcount:
                    raise StoreError(
                        f"cannot split batch {batch_id}: it has no ended episode {episode_id}"
                    )

    def add_step(self, step: StepRecord, scores: Sequence[CallScore]) -> None:
        """Write or replace a step and its scores."""
        connection = self._connection
        with savepoint(connection):
            connection.execute(_REPLACE_STEP, codec.step_row(step))
            # Its batch may have been meant for a later step, if one before it was refused.
            connection.execute(
                "UPDATE batches SET step = ? WHERE batch_id = ?", (step.step, step.batch_id)
            )
            connection.execute("DELETE FROM scores WHERE step = ?", (step.step,))
            for score in scores:
                call = self._row_id(_CALL_ID, score.call_id)
                if call is None:
                    raise StoreError(
                        f"cannot add step {step.step}: call {score.call_id} is not in the store"
                    )
                connection.execute(_INSERT_SCORE, codec.score_row(score, call, step.step))

    def rewind(self, step: int, discard: BatchRecord | None) -> None:
        """Forget later steps and their scores, and refuse their batches if they are to be discarded."""
        connection = self._connection
        with savepoint(connection):
            connection.execute("DELETE FROM scores WHERE step > ?", (step,))
            connection.execute("DELETE FROM steps WHERE step > ?", (step,))
            if discard is None:
                return
            connection.execute(
                "UPDATE batches SET refused = ? WHERE step > ? AND refused = ''",
                (discard.refused, step),
            )
            found = connection.execute(
                "SELECT episode_id, state FROM episodes WHERE batch_id IS NULL AND kind = 'train' "
                "AND state IN ('ended', 'aborted') ORDER BY id"
            ).fetchall()
            if found:
                ended = [name for name, state in found if state == "ended"]
                aborted = [name for name, state in found if state == "aborted"]
                self.add_batch(replace(discard, episode_ids=ended, aborted_ids=aborted))
                self.refuse_batch(discard.batch_id, discard.refused)

    def _count_outcome(self, episode: EpisodeRecord) -> None:
        if episode.state in ("ended", "aborted"):
            self._pending[f"episodes_{episode.state}"] += 1
            if episode.joint is not None:
                self._pending[f"joint_{episode.state}"] += 1
        if episode.cause:
            self._pending[f"aborted_{episode.cause}"] += 1

    def _row_id(self, query: str, name: str) -> int | None:
        known = self._known[query].get(name)
        if known is not None:
            return known
        found = self._connection.execute(query, (name,)).fetchone()
        return None if found is None else self._learn(query, name, found[0])

    def _learn(self, query: str, name: str, row_id: int) -> int:
        known = self._known[query]
        if len(known) >= _KNOWN_ROWS:
            # The first to come is the one that is needed least.
            del known[next(iter(known))]
        known[name] = row_id
        return row_id

    def _why_not_batched(self, episode_id: str, state: EpisodeState) -> str:
        episode = read_episode(self._connection, episode_id)
        if episode is None:
            return f"episode {episode_id} is not in the store"
        if episode.batch_id is not None:
            return f"episode {episode_id} is in batch {episode.batch_id} already"
        return f"episode {episode_id} is {episode.state}, not {state}"
