"""What the server makes of the records of any store: rules, indices and counts."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import StoreError, StoreFullError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeRecord,
    JointRecord,
    Record,
    RunRecord,
    SampleStore,
    StepRecord,
    WorkerContext,
)
from ajet_core.protocol import ABORT_CAUSES
from ajet_server.averages import LARGEST_TERM
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.evaluation_counts import EvaluationCount
from ajet_server.store.run_store import _LARGEST_REWARD, GroupCount, RunStore
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.suites.samples import conversation, make_episode, make_joint
from tests.embedded.jsonl_store import JsonlStore, JsonlStoreSettings
from tests.support.tiers import examples

Make = Callable[[Path], SampleStore]


def sqlite_store(run_dir: Path) -> SampleStore:
    return SqliteStore(SqliteStoreSettings(synchronous="NORMAL"), WorkerContext(run_dir))


def jsonl_store(run_dir: Path) -> SampleStore:
    return JsonlStore(JsonlStoreSettings(), WorkerContext(run_dir))


@pytest.fixture(params=[sqlite_store, jsonl_store])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunStore]:
    store = RunStore(request.param(tmp_path))
    await store.open()
    yield store
    await store.close()


async def ended(store: RunStore, *episode_ids: str) -> list[EpisodeRecord]:
    """Add episodes and end them."""
    finished = []
    for episode_id in episode_ids:
        episode = make_episode(episode_id)
        await store.add_episode(episode)
        outcome = replace(episode, state="ended", reward=1.0, finished_at=1700000009.0)
        finished.append(await store.finish_episode(outcome))
    return finished


async def aborted(store: RunStore, episode_id: str) -> EpisodeRecord:
    """Add an episode and abort it."""
    await store.add_episode(make_episode(episode_id))
    gone = replace(make_episode(episode_id), state="aborted", cause="timeout", finished_at=3.0)
    return await store.finish_episode(gone)


def ids(episodes: list[EpisodeRecord]) -> list[str]:
    return [episode.episode_id for episode in episodes]


async def test_the_first_outcome_stands(store: RunStore) -> None:
    (first,) = await ended(store, "episode")
    second = replace(make_episode(), state="aborted", reason="too late")
    assert await store.finish_episode(second) == first
    assert await store.get_episode("episode") == first
    assert (await store.counters())["episodes_aborted"] == 0


async def test_of_two_outcomes_at_once_one_stands_for_both(store: RunStore) -> None:
    await store.add_episode(make_episode())
    first = replace(make_episode(), state="ended", reward=1.0)
    second = replace(make_episode(), state="aborted", cause="timeout")
    told = await asyncio.gather(store.finish_episode(first), store.finish_episode(second))
    assert told == [first, first]
    assert await store.get_episode("episode") == first
    counters = await store.counters()
    assert (counters["episodes_ended"], counters["episodes_aborted"]) == (1, 0)


@pytest.mark.parametrize("write", ["finish_episode", "prepare_episode"])
async def test_an_outcome_needs_an_episode_and_a_state(store: RunStore, write: str) -> None:
    with pytest.raises(StoreError, match="episode"):
        await store.finish_episode(replace(make_episode(), state="aborted"))
    with pytest.raises(StoreError, match="unknown"):
        await store.prepare_episode(replace(make_episode("unknown"), state="prepared"))
    await store.add_episode(make_episode())
    with pytest.raises(StoreError, match="open"):
        await getattr(store, write)(make_episode())
    with pytest.raises(StoreError, match="not prepared"):
        await store.prepare_episode(replace(make_episode(), state="ended"))
    with pytest.raises(StoreError, match="prepared"):
        await store.finish_episode(replace(make_episode(), state="prepared"))


async def test_what_was_prepared_first_stands_and_is_ended_or_aborted_once(
    store: RunStore,
) -> None:
    await store.add_episode(make_joint("committed"))
    await store.add_episode(make_joint("given-up", joint_id="another"))
    for episode_id, joint_id in (("committed", "joint"), ("given-up", "another")):
        first = replace(make_joint(episode_id, joint_id=joint_id), state="prepared", reward=1.0)
        assert await store.prepare_episode(first) == first
        assert await store.prepare_episode(replace(first, reward=2.0)) == first
    assert ids(store.loose("prepared")) == ["committed", "given-up"]
    over = replace(make_joint("committed"), state="ended", reward=1.0, finished_at=1.0)
    assert await store.finish_episode(over) == over
    assert await store.prepare_episode(replace(over, state="prepared")) == over
    given_up = replace(make_joint("given-up", joint_id="another"), state="aborted", reason="x")
    assert await store.finish_episode(given_up) == given_up
    assert await store.finish_episode(replace(given_up, state="ended")) == given_up
    counters = await store.counters()
    assert (counters["joint_ended"], counters["joint_aborted"]) == (1, 1)


async def test_an_episode_is_found_by_its_claim(store: RunStore) -> None:
    claimed = replace(make_episode("claimed"), claim_hash="ab" * 32)
    await store.add_episode(claimed)
    await store.add_episode(make_episode("without"))
    await store.add_episode(make_episode("without-too"))
    assert await store.claimed("ab" * 32) == claimed
    assert await store.claimed("cd" * 32) is None
    assert await store.claimed("") is None


async def test_parts_are_found_by_their_joint_episode(store: RunStore) -> None:
    await store.add_episode(make_episode("alone"))
    await store.add_episode(make_joint())
    assert await store.joint_parts(["joint", "unknown"]) == {"joint": make_joint()}


@pytest.mark.parametrize(
    "episode",
    [replace(make_episode("b"), claim_hash="ab" * 32), make_joint("b")],
    ids=["claim", "joint"],
)
async def test_a_claim_and_a_joint_episode_have_one_episode_each(
    store: RunStore, episode: EpisodeRecord
) -> None:
    first = replace(episode, episode_id="a")
    both = [store.add_episode(first), store.add_episode(episode)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError]
    with pytest.raises(StoreError):
        await store.add_episode(episode)
    assert ids(await store.episodes()) == ["a"]


class Filling(JsonlStore):
    """A store whose disk is full when it is told so."""

    full = False

    async def append(self, *records: Record) -> None:
        if self.full:
            raise StoreFullError("the disk is full")
        await super().append(*records)


async def test_what_could_not_be_written_is_not_counted(tmp_path: Path) -> None:
    disk = Filling(JsonlStoreSettings(), WorkerContext(tmp_path))
    store = RunStore(disk)
    await store.open()
    claimed = replace(make_joint("claimed"), claim_hash="ab" * 32)
    await ended(store, "ended")
    await store.add_episode(make_episode())
    before = (await store.counters(), store.loose("open", "ended"))
    disk.full = True
    writes: list[Awaitable[object]] = [
        store.add_episode(claimed),
        store.finish_episode(replace(make_episode(), state="aborted", cause="timeout")),
        store.add_batch(BatchRecord("batch", 1, ["ended"], 2.0)),
        store.rewind(0, discard=BatchRecord("rest", 1, [], 2.0, refused="why")),
    ]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreFullError] * 4
    assert (await store.counters(), store.loose("open", "ended")) == before
    assert await store.claimed(claimed.claim_hash) is None
    disk.full = False
    await store.add_episode(claimed)
    await store.add_batch(BatchRecord("batch", 1, ["ended"], 2.0))
    assert store.loose("ended") == []
    await store.close()


async def test_what_a_cancelled_writer_wrote_is_counted(store: RunStore) -> None:
    await store.add_episode(make_episode())
    outcome = replace(make_episode(), state="ended", reward=1.0)
    writing = asyncio.ensure_future(store.finish_episode(outcome))
    await asyncio.sleep(0)
    writing.cancel()
    # It comes after the one before.
    assert await store.finish_episode(replace(outcome, reward=2.0)) == outcome
    assert (await store.counters())["episodes_ended"] == 1
    assert store.loose("ended") == [outcome]


async def test_an_episode_is_given_up_once_it_was_aborted(store: RunStore) -> None:
    await ended(store, "ended")
    late = await aborted(store, "late")
    batched = await aborted(store, "batched")
    await store.add_batch(BatchRecord("batch", 1, [], 2.0, aborted_ids=["batched"]))
    for _ in range(2):
        assert await store.give_up("late") == replace(late, final=True)
        found = await store.give_up("batched")
        assert found == replace(batched, final=True, batch_id="batch")
    assert await store.get_episode("late") == replace(late, final=True)
    assert ids(store.loose("aborted")) == ["late"]
    for wrong in ("ended", "never"):
        with pytest.raises(StoreError, match=wrong):
            await store.give_up(wrong)


@pytest.mark.parametrize("bad", ["open", "aborted", "unknown", "batched", "good"])
async def test_a_batch_is_added_wholly_or_not_at_all(store: RunStore, bad: str) -> None:
    await ended(store, "good", "batched")
    await store.add_episode(make_episode("open"))
    await aborted(store, "aborted")
    first = BatchRecord("first", 1, ["batched"], 2.0)
    await store.add_batch(first)
    before = await store.episodes()
    # "good" twice.
    with pytest.raises(StoreError, match=bad):
        await store.add_batch(BatchRecord("second", 2, ["good", bad], 3.0))
    assert await store.episodes() == before
    assert await store.batches(after_step=0) == [first]
    assert ids(store.loose("ended")) == ["good"]


async def test_a_batch_is_refused_with_its_episodes(store: RunStore) -> None:
    await ended(store, "a", "b")
    first, second = (BatchRecord(f"batch-{e}", s, [e], 2.0) for s, e in ((1, "a"), (2, "b")))
    await store.add_batch(first)
    await store.add_batch(second)
    await store.refuse_batch(first, "its loss is NaN")
    # It was to be trained as step 1 in the place of the first.
    await store.refuse_batch(replace(second, step=1), "its loss is NaN, too")
    assert await store.batches(after_step=0) == []
    assert await store.batches(after_step=0, refused=True) == [
        replace(first, refused="its loss is NaN"),
        replace(second, refused="its loss is NaN, too"),
    ]
    assert await store.episodes(batched=False) == []
    with pytest.raises(StoreError, match="lost"):
        await store.refuse_batch(replace(first, batch_id="lost"), "why not")


async def test_episodes_of_a_batch_are_quarantined_and_the_others_trained(store: RunStore) -> None:
    await ended(store, "a", "b", "c")
    batch = BatchRecord("batch", 1, ["a", "b", "c"], 2.0)
    await store.add_batch(batch)
    bad = BatchRecord("bad", 1, ["b"], 3.0, refused="it cannot be processed")
    await store.split_batch(batch, bad)
    kept = replace(batch, episode_ids=["a", "c"])
    assert await store.batches(after_step=0) == [kept]
    assert await store.batches(after_step=0, refused=True) == [bad]
    for wrong in (["a", "b"], ["never"]):
        with pytest.raises(StoreError, match="has no ended episode"):
            await store.split_batch(kept, replace(bad, batch_id="c", episode_ids=wrong))
    assert await store.batches(after_step=0) == [kept]


async def test_a_batch_is_divided_and_later_ones_wait_for_all_parts(store: RunStore) -> None:
    await ended(store, "a", "b", "c", "d")
    batch = BatchRecord("batch", 2, ["a", "b", "c"], 2.0, credit={"x": 0.5})
    later = BatchRecord("later", 3, ["d"], 2.0)
    await store.add_batch(batch)
    await store.add_batch(later)
    with pytest.raises(StoreError, match="do not have its episodes"):
        await store.divide_batch(batch, [["a", "b"], ["d"]])
    # It was to be trained as step 1.
    await store.divide_batch(replace(batch, step=1), [["a", "c"], ["b"]])
    first, second, third = await store.batches(after_step=1)
    assert first == replace(batch, episode_ids=["a", "c"])
    assert second == replace(batch, batch_id=second.batch_id, step=3, episode_ids=["b"])
    assert third == replace(later, step=4)
    assert await store.batches(after_step=2) == [second, third]
    assert await store.episodes(batched=False) == []


async def test_a_batch_is_that_of_the_step_that_trained_it(store: RunStore) -> None:
    await ended(store, "a")
    await store.add_batch(BatchRecord("batch", 2, ["a"], 2.0))
    await store.add_step(StepRecord(1, "batch", {}, 5.0))
    assert await store.batches(after_step=0) == [BatchRecord("batch", 1, ["a"], 2.0)]
    assert await store.batches(after_step=1) == []


async def test_steps_of_lost_weights_are_forgotten(store: RunStore) -> None:
    (call,) = conversation(1)
    await ended(store, "a")
    await store.add_episode(make_episode())
    await store.add_call(call)
    await store.add_batch(BatchRecord("b2", 2, ["a"], 2.0))
    for step in (1, 2):
        scores = [CallScore(call.call_id, step / 2, [])]
        await store.add_step(StepRecord(step, f"b{step}", {}, 5.0, scores))
    await store.rewind(1)
    assert [s.step for s in await store.steps()] == [1]
    assert await store.scores("episode") == {call.call_id: CallScore(call.call_id, 0.5, [])}
    assert [b.batch_id for b in await store.batches(after_step=1)] == ["b2"]


async def test_what_was_sampled_by_given_up_weights_is_refused(store: RunStore) -> None:
    await ended(store, "a", "b", "c", "d")
    for step, episode in ((1, "a"), (2, "b")):
        await store.add_batch(BatchRecord(f"batch-{episode}", step, [episode], 2.0))
    await aborted(store, "e")
    evaluated = replace(make_episode("f"), state="ended", kind="eval", reward=1.0)
    for record in (evaluated, make_episode("g")):
        await store.add_episode(record)
    await store.rewind(1, discard=BatchRecord("rest", 2, [], 5.0, refused="gone back"))
    assert [b.batch_id for b in await store.batches(after_step=0)] == ["batch-a"]
    first, rest = await store.batches(after_step=0, refused=True)
    assert (first.batch_id, first.refused) == ("batch-b", "gone back")
    assert rest == BatchRecord("rest", 2, ["c", "d"], 5.0, refused="gone back", aborted_ids=["e"])
    # Evaluations and open episodes are not about what is trained.
    assert ids(await store.episodes(batched=False)) == ["f", "g"]
    # Again, as after a kill: nothing is left to refuse.
    await store.rewind(1, discard=BatchRecord("again", 2, [], 6.0, refused="gone back"))
    assert len(await store.batches(after_step=0, refused=True)) == 2


async def test_a_damaged_episode_is_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    store = RunStore(sqlite_store(tmp_path))
    await store.open()
    await ended(store, "a", "damaged", "b")
    await store.close()
    with sqlite3.connect(tmp_path / "samples.sqlite3") as database:
        database.execute("UPDATE episodes SET metadata = '{' WHERE episode_id = 'damaged'")
    database.close()
    await store.open()
    assert ids(store.loose("ended")) == ["a", "b"]
    with pytest.raises(StoreError, match="cannot be read"):
        await store.get_episode("damaged")
    await store.close()


# What the queries of the database say, which answered these questions before.
_COUNTS = """
SELECT iif(state = 'prepared', 'open', state), count(*) FROM episodes
WHERE group_name = ? AND kind = ? AND client_id = ? GROUP BY 1
"""
_REWARDS = """
SELECT reward FROM episodes
WHERE group_name = ? AND kind = ? AND client_id = ? AND state = 'ended'
AND (batch_id IS NULL OR batch_id NOT IN (SELECT batch_id FROM batches WHERE refused != ''))
"""
_EVALUATIONS = f"""
SELECT client_id, tag, claim_version, task_id, sum(state = 'ended'),
sum(state = 'ended' AND reward >= ?), sum(state = 'ended' AND mixed),
total(CASE state WHEN 'ended' THEN min(max(reward, -{LARGEST_TERM}), {LARGEST_TERM}) END),
sum(state = 'aborted')
FROM episodes WHERE kind = 'eval' AND state NOT IN ('open', 'prepared')
GROUP BY claim_version, client_id, tag, task_id ORDER BY claim_version, client_id, tag, task_id
"""
_LOOSE = """
SELECT episode_id FROM episodes WHERE batch_id IS NULL AND state = ?
AND (kind = 'train' OR state IN ('open', 'prepared')) ORDER BY id
"""
_TOTALS = """
SELECT count(*), sum(state = 'ended'), sum(state = 'aborted'),
sum(state = 'ended' AND joint_id IS NOT NULL), sum(state = 'aborted' AND joint_id IS NOT NULL)
FROM episodes
"""


async def check_against_queries(store: RunStore, database: sqlite3.Connection) -> None:
    """Compare the answers of a store with those of the database."""
    for group in ("g", "h"):
        for client in ("client", "other"):
            for kind in ("train", "eval"):
                counted = dict(database.execute(_COUNTS, (group, kind, client)).fetchall())
                told = store.group_counts([group], kind=kind, client_id=client)
                rewards = [
                    max(-_LARGEST_REWARD, min(value, _LARGEST_REWARD))
                    for (value,) in database.execute(_REWARDS, (group, kind, client))
                ]
                if rewards:
                    assert told[group].reward_mean == pytest.approx(fmean(rewards))
                    assert told[group].reward_std == pytest.approx(pstdev(rewards), abs=1e-6)
                else:
                    assert told[group].reward_mean is told[group].reward_std is None
                plain = replace(
                    told[group], rewarded=0, first=0.0, difference_sum=0.0, square_sum=0.0
                )
                assert {group: plain} == {group: GroupCount(**counted)}
    rows = [EvaluationCount(*row) for row in database.execute(_EVALUATIONS, (0.5,))]
    told_evaluations = await store.evaluation_counts(pass_reward=0.5)
    assert [replace(e, reward_sum=0.0) for e in told_evaluations] == [
        replace(row, reward_sum=0.0) for row in rows
    ]
    assert [e.reward_sum for e in told_evaluations] == pytest.approx([r.reward_sum for r in rows])
    for state in ("open", "prepared", "ended", "aborted"):
        queried = [name for (name,) in database.execute(_LOOSE, (state,))]
        assert ids(store.loose(state)) == queried
    totals = [number or 0 for number in database.execute(_TOTALS).fetchone()]
    counters = await store.counters()
    names = ("episodes", "episodes_ended", "episodes_aborted", "joint_ended", "joint_aborted")
    assert [counters[name] for name in names] == totals
    causes = dict(database.execute("SELECT cause, count(*) FROM episodes GROUP BY cause"))
    assert {c: counters[f"aborted_{c}"] for c in ABORT_CAUSES} == {
        c: causes.get(c, 0) for c in ABORT_CAUSES
    }
    claims = database.execute("SELECT claim_hash, episode_id FROM episodes WHERE claim_hash != ''")
    for claim, episode_id in claims.fetchall():
        claimed = await store.claimed(claim)
        assert claimed is not None
        assert claimed.episode_id == episode_id
    joints = database.execute(
        "SELECT joint_id, episode_id FROM episodes WHERE joint_id IS NOT NULL"
    )
    expected = dict(joints.fetchall())
    parts = await store.joint_parts([*expected, "unknown"])
    assert {joint_id: part.episode_id for joint_id, part in parts.items()} == expected


NUMBERS = st.integers(0, 7)
REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.5, 1e300])
EPISODES = st.builds(
    lambda group, kind, client, task, version, tag, claim, joint: replace(
        make_episode(group=group),
        kind=kind,
        client_id=client,
        task_id=task,
        claim_version=version,
        tag=tag,
        claim_hash=claim,
        joint=JointRecord(joint, "a", "b", "run") if joint else None,
    ),
    st.sampled_from("gh"),
    st.sampled_from(["train", "eval"]),
    st.sampled_from(["client", "other"]),
    st.sampled_from("tu"),
    st.integers(0, 2),
    st.sampled_from("xy"),
    st.sampled_from(["", "", "c1", "c2", "c3"]),
    st.sampled_from(["", "", "j1", "j2"]),
)
CHANGES = st.one_of(
    st.tuples(st.just("add"), EPISODES),
    st.tuples(st.just("prepare"), NUMBERS, REWARDS),
    st.tuples(st.just("end"), NUMBERS, REWARDS, st.booleans()),
    st.tuples(st.just("abort"), NUMBERS, st.sampled_from(ABORT_CAUSES), st.booleans()),
    st.tuples(st.just("give up"), NUMBERS),
    st.tuples(st.just("batch"), st.lists(NUMBERS, max_size=3), st.lists(NUMBERS, max_size=2)),
    st.tuples(st.just("rewind")),
    st.tuples(st.just("reopen")),
)


async def apply(store: RunStore, number: int, change: tuple[Any, ...]) -> None:
    """Do something to a store; whether it may is up to the store."""
    what, *about = change
    if what == "add":
        await store.add_episode(replace(about[0], episode_id=f"e{number % 8}"))
    elif what == "reopen":
        await store.close()
        await store.open()
    elif what == "rewind":
        await store.rewind(0, discard=BatchRecord(f"b{number}", 1, [], 1.0, refused="gone back"))
    elif what == "batch":
        ended, gone = ([f"e{n}" for n in numbers] for numbers in about)
        await store.add_batch(BatchRecord(f"b{number}", number, ended, 1.0, aborted_ids=gone))
    elif what == "give up":
        await store.give_up(f"e{about[0]}")
    else:
        episode = replace(make_episode(f"e{about[0]}"), finished_at=2.0)
        if what == "prepare":
            await store.prepare_episode(replace(episode, state="prepared", reward=about[1]))
        elif what == "end":
            outcome = replace(episode, state="ended", reward=about[1], mixed=about[2])
            await store.finish_episode(outcome)
        else:
            outcome = replace(episode, state="aborted", cause=about[1], final=about[2])
            await store.finish_episode(outcome)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(CHANGES, max_size=24))
def test_answers_are_those_of_queries_whatever_happened(changes: list[tuple[Any, ...]]) -> None:
    async def run(run_dir: Path) -> None:
        store = RunStore(sqlite_store(run_dir))
        await store.open()
        for number, change in enumerate(changes):
            try:
                await apply(store, number, change)
            except StoreError:
                continue
        database = sqlite3.connect(run_dir / "samples.sqlite3")
        await check_against_queries(store, database)
        await store.close()
        # Read, not kept.
        await store.open()
        await check_against_queries(store, database)
        database.close()
        await store.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_the_run_is_replaced(store: RunStore) -> None:
    await store.put_run(RunRecord("run", '{"a": 1}', 1.5))
    await store.put_run(RunRecord("run", '{"a": 2}', 1.5, active=True))
    assert await store.get_run() == RunRecord("run", '{"a": 2}', 1.5, True)


async def test_counters_add_up(store: RunStore) -> None:
    await ended(store, "a", "b")
    await aborted(store, "c")
    await store.add_episode(make_episode())
    calls = conversation(3)
    for call in calls:
        await store.add_call(call)
    assert await store.counters() == {
        "episodes": 4,
        "episodes_ended": 2,
        "episodes_aborted": 1,
        **{f"aborted_{cause}": int(cause == "timeout") for cause in ABORT_CAUSES},
        "joint_ended": 0,
        "joint_aborted": 0,
        "calls": 3,
        "tokens_raw": sum(len(call.token_ids) for call in calls),
        "tokens_sampled": 9,
    }
