"""Conformance tests for sample stores. Subclass `SampleStoreSuite`; needs pytest-asyncio."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ajet_core.errors import StoreError, StoreFullError
from ajet_core.interfaces import (
    ALL_EPISODES,
    BatchRecord,
    CallScore,
    CallTotals,
    EpisodeQuery,
    EpisodeRecord,
    EpisodeState,
    JointRecord,
    Record,
    RewindRecord,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.timeline import MessageText, PlacedMessage
from ajet_server.store.patient_store import PatientStore
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.other_process import in_a_killed_process
from ajet_testing.suites.samples import conversation, make_call, make_episode, make_joint

_TEXTS = [
    "",
    "a\0b",
    "\x1a0041 \x1a",
    "half a pair: \ud83d",
    "\udc00 and the other half",
    "a'b\"c\\d%s?{}\n\r\t\x7f\x80",
    "\u202e\ufeff\u2028 e\u0301 \U0001f600",
    "long " * 20_000,
]
"""Texts that databases and encodings have trouble with."""

__all__ = ["SampleStoreSuite", "aborted", "ended", "owners", "stored_episodes"]


_KilledWriter = Callable[[int, Path], list[str]]


class SampleStoreSuite(ConformanceSuite):
    """Conformance tests of a `SampleStore`; a subclass creates one.

    ::

        class TestMyStore(SampleStoreSuite):
            async def make_store(self, run_dir):
                return MyStore(MySettings(), WorkerContext(run_dir))
    """

    pytestmark = pytest.mark.asyncio

    async def make_store(self, run_dir: Path) -> SampleStore:
        """Create a store for `run_dir` that is not open yet."""
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SampleStore]:
        """An open store."""
        store = await self.make_store(tmp_path)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    def killed_writer(self) -> _KilledWriter:
        """Lets a process write to a store in a directory until it has acknowledged some writes."""
        return partial(in_a_killed_process, self, "write_forever")

    def write_forever(self, run_dir: Path, pipe: int) -> None:
        """Write episodes until the process is killed, as `killed_writer` does."""
        asyncio.run(_write_forever(self.make_store(run_dir), pipe))

    async def test_a_new_store_is_empty(self, store: SampleStore) -> None:
        assert await store.get_run() is None
        assert await stored_episodes(store) == []
        assert await store.batches(after_step=0) == []
        assert await store.steps() == []
        assert await store.call_totals() == CallTotals()

    async def test_the_run_is_replaced(self, store: SampleStore) -> None:
        await store.append(RunRecord("run", '{"a": 1}', 1.5))
        run = RunRecord("run", '{"a": 2}', 1.5, active=True, paused="why", back_to=3, retrains=True)
        await store.append(run)
        assert await store.get_run() == run

    async def test_an_episode_comes_back_as_it_was(self, store: SampleStore) -> None:
        episode = replace(make_joint(), claim_hash="ab" * 32)
        await store.append(episode)
        assert await store.get_episode("episode") == episode
        assert await store.get_episode("another") is None

    @pytest.mark.parametrize("state", ["prepared", "ended", "aborted"])
    async def test_an_outcome_comes_back_as_it_was(
        self, store: SampleStore, state: EpisodeState
    ) -> None:
        await store.append(make_episode())
        outcome = replace(
            make_episode(),
            state=state,
            reward=-0.5,
            components={"format": -0.5},
            call_rewards={"call": 0.25},
            agent_rewards={"planner": -1.5},
            metadata={"host": "a"},
            reason="why",
            cause="timeout",
            final=True,
            mixed=True,
            finished_at=1700000009.0,
        )
        await store.append(outcome)
        assert await store.get_episode("episode") == outcome
        assert await stored_episodes(store) == [outcome]

    @pytest.mark.parametrize("text", _TEXTS, ids=range(len(_TEXTS)))
    async def test_any_text_comes_back_as_it_was(self, store: SampleStore, text: str) -> None:
        """Agents and clients choose these texts, and models sample any character."""
        joint = JointRecord("joint", text, text, text)
        episode = replace(
            make_episode(),
            task_id=text,
            group=text,
            tag=text,
            joint=joint,
            metadata={text: text},
            components={text: 0.5},
        )
        said = PlacedMessage(0, 1, MessageText("user", text, text, text, text, text))
        call = replace(
            make_call("call", [1], [2]),
            agent=text,
            tools=text,
            metadata={text: text},
            messages=(said,),
            answer=MessageText("assistant", text),
        )
        await store.append(RunRecord("run", f'{{"a": "{text}"}}', 1.0, paused=text))
        await store.append(episode, call)
        outcome = replace(episode, state="aborted", reason=text, cause="error")
        batch = BatchRecord("batch", 1, [], 2.0, refused=f"because {text}", aborted_ids=["episode"])
        await store.append(outcome, batch, StepRecord(1, "batch", {text: 0.5}, 3.0))
        run = await store.get_run()
        assert run is not None
        assert (run.paused, run.config_json) == (text, f'{{"a": "{text}"}}')
        assert await store.get_episode("episode") == replace(outcome, batch_id="batch")
        assert await store.calls(["episode"]) == {"episode": [call]}
        assert await store.batches(after_step=0, refused=True) == [batch]
        (step,) = await store.steps()
        assert step.metrics == {text: 0.5}
        (named,) = await stored_episodes(store, EpisodeQuery(task_id=text))
        assert named.task_id == text

    async def test_numbers_come_back_as_they_were(self, store: SampleStore) -> None:
        rewards = [0.1 + 0.2, -1e-300, 1e300, 1 / 3]
        names = [f"e{number}" for number in range(len(rewards))]
        await store.append(*(make_episode(name) for name in names))
        for name, reward in zip(names, rewards, strict=True):
            await store.append(replace(ended(name), reward=reward))
        assert [e.reward for e in await stored_episodes(store)] == rewards

    async def test_an_outcome_is_replaced(self, store: SampleStore) -> None:
        prepared = replace(make_joint(), state="prepared", reward=1.0)
        aborted = replace(prepared, state="aborted", reward=None, reason="its arbiter decided it")
        for record in (make_joint(), prepared, aborted, replace(aborted, final=True)):
            await store.append(record)
        assert await stored_episodes(store) == [replace(aborted, final=True)]

    async def test_an_open_episode_is_new(self, store: SampleStore) -> None:
        await store.append(make_episode())
        with pytest.raises(StoreError, match="episode"):
            await store.append(replace(make_episode(), tag="other"))
        assert await stored_episodes(store) == [make_episode()]

    async def test_episodes_are_found_in_order_of_their_claims(self, store: SampleStore) -> None:
        for number, episode_id in enumerate(("z-1", "y", "z_2", "x")):
            await store.append(make_episode(episode_id, group=f"group-{number % 2}"))
        await store.append(replace(make_episode("w"), kind="eval"))
        for number, episode_id in enumerate(("z_2", "y")):
            await store.append(replace(ended(episode_id), task_id=f"group-{number}-1"))

        async def ids(**query: Any) -> list[str]:
            return [e.episode_id for e in await stored_episodes(store, EpisodeQuery(**query))]

        assert await ids() == ["z-1", "y", "z_2", "x", "w"]
        assert await ids(newest_first=True) == ["w", "x", "z_2", "y", "z-1"]
        assert await ids(state="ended") == ["y", "z_2"]
        assert await ids(state="open", kind="train") == ["z-1", "x"]
        assert await ids(task_id="group-1-1") == ["y", "x"]
        assert await ids(prefix="z") == ["z-1", "z_2"]
        assert await ids(prefix="z_", newest_first=True) == ["z_2"]
        assert await ids(prefix="%") == []
        assert await ids(kind="eval", state="ended") == []

    async def test_thousands_of_episodes_are_read_in_order(self, store: SampleStore) -> None:
        names = [f"e{number}" for number in range(1300)]
        await store.append(*map(make_episode, names))
        assert [e.episode_id for e in await stored_episodes(store)] == names
        backwards = await stored_episodes(store, EpisodeQuery(newest_first=True))
        assert [e.episode_id for e in backwards] == names[::-1]

    async def test_episodes_are_read_while_others_are_written(self, store: SampleStore) -> None:
        await store.append(make_episode("a"), make_episode("b"))
        seen = []
        async for episode in store.episodes():
            seen.append(episode.episode_id)
            await store.append(ended(episode.episode_id))
        assert seen == ["a", "b"]
        assert [e.state for e in await stored_episodes(store)] == ["ended", "ended"]

    async def test_calls_come_back_as_they_were(self, store: SampleStore) -> None:
        await store.append(make_episode())
        calls = conversation(5)
        for call in calls:
            await store.append(call)
        assert await store.calls(["episode", "another"]) == {"episode": calls, "another": []}

    async def test_calls_are_in_order_of_their_index(self, store: SampleStore) -> None:
        await store.append(make_episode())
        calls = conversation(4, hints=False)
        for call in reversed(calls):
            await store.append(call)
        assert (await store.calls(["episode"]))["episode"] == calls

    async def test_branches_of_a_conversation_come_back_as_they_were(
        self, store: SampleStore
    ) -> None:
        await store.append(make_episode())
        root = make_call("root", [1, 2, 3], [4, 5])
        extends = make_call("extends", [1, 2, 3, 4, 5, 6], [7], index=1, parent=root)
        extends = replace(extends, tools='[{"name":"look"}]')
        calls = [
            root,
            extends,
            make_call("extends-too", [1, 2, 3, 4, 5], [8, 9], index=2, parent=root),
            make_call("cuts-reply", [1, 2, 3, 4, 6], [7], index=3, parent=root),
            make_call("cuts-prompt", [1, 2], [3], index=4, parent=root),
            make_call("rewrites", [9, 9], [], index=5, parent=root),
            make_call("has-no-tools", [*extends.token_ids, 8], [9], index=6, parent=extends),
        ]
        for call in calls:
            await store.append(call)
        assert (await store.calls(["episode"]))["episode"] == calls

    async def test_a_base_the_store_never_saw_loses_nothing(self, store: SampleStore) -> None:
        await store.append(make_episode())
        base = conversation(1)[0]
        call = make_call("call", [*base.token_ids, 2], [3], parent=base)
        await store.append(call)
        assert (await store.calls(["episode"]))["episode"] == [call]
        await store.close()
        await store.open()
        assert (await store.calls(["episode"]))["episode"] == [call]

    async def test_a_long_conversation_comes_back_as_it_was(self, store: SampleStore) -> None:
        await store.append(make_episode())
        texts = (PlacedMessage(0, 50_000, MessageText("user", "long " * 400_000)),)
        first = make_call("first", list(range(50_000)), [1])
        first = replace(first, messages=texts, tools="x" * 1_000_000)
        second = make_call("second", [*range(50_000), 1, 2], [3], index=1, parent=first)
        second = replace(second, tools=first.tools)
        # The second one is requested before the first one is written.
        await asyncio.gather(store.append(first), store.append(second))
        assert (await store.calls(["episode"]))["episode"] == [first, second]

    async def test_a_base_is_still_known_when_the_store_is_opened_again(
        self, tmp_path: Path
    ) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.append(make_episode())
        first, second = conversation(2)
        await store.append(first)
        await store.close()
        await store.open()
        await store.append(second)
        stored = (await store.calls(["episode"]))["episode"]
        assert stored == [first, second]
        assert stored[1].parent_call_id == first.call_id
        await store.close()

    async def test_a_call_of_an_unknown_episode_is_refused(self, store: SampleStore) -> None:
        with pytest.raises(StoreError, match="episode"):
            await store.append(make_call("call", [1], [2]))
        assert await store.call_totals() == CallTotals()

    async def test_a_call_id_is_used_once(self, store: SampleStore) -> None:
        await store.append(make_episode())
        call = make_call("call", [1], [2])
        await store.append(call)
        with pytest.raises(StoreError, match="call"):
            await store.append(make_call("call", [3], [4], index=1))
        assert (await store.calls(["episode"]))["episode"] == [call]

    async def test_a_write_that_fails_fails_alone(self, store: SampleStore) -> None:
        await store.append(make_episode())
        calls = conversation(6)
        writes = [store.append(call) for call in [*calls[:3], calls[0], *calls[3:]]]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(r) for r in results if r is not None] == [StoreError]
        assert isinstance(results[3], StoreError)
        assert (await store.calls(["episode"]))["episode"] == calls
        assert (await store.call_totals()).calls == 6

    async def test_writes_that_fail_again_and_again_fail_alone(self, store: SampleStore) -> None:
        await store.append(make_episode())
        for turn in range(12):
            good = [make_call(f"{turn}-{n}", [n], [1], index=10 * turn + n) for n in range(6)]
            bad = make_call(f"bad-{turn}", [1], [2], episode_id="unknown")
            writes = [store.append(call) for call in [*good[:3], bad, *good[3:]]]
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(r) for r in results if r is not None] == [StoreError]
            await store.append(ended(f"e{turn}"), make_episode(f"open-{turn}"))
        assert (await store.call_totals()).calls == 72
        assert len((await store.calls(["episode"]))["episode"]) == 72

    @pytest.mark.parametrize(
        "bad",
        [
            make_episode("known"),
            make_call("call", [1], [2], episode_id="unknown"),
            BatchRecord("batch", 1, ["known"], 2.0),
            BatchRecord("batch", 1, [], 2.0, aborted_ids=["unknown"]),
            StepRecord(1, "batch", {}, 4.0, [CallScore("unknown", 1.0, [])]),
        ],
        ids=lambda record: type(record).__name__,
    )
    async def test_records_are_appended_all_or_none(self, store: SampleStore, bad: Record) -> None:
        await store.append(make_episode("known"), ended("over"))
        await store.append(StepRecord(1, "first", {}, 4.0))
        before = await stored_episodes(store)
        base = make_call("base", [1, 2], [3], episode_id="known")
        with pytest.raises(StoreError):
            await store.append(
                RunRecord("run", "{}", 1.0),
                make_episode("new"),
                base,
                BatchRecord("second", 2, ["over"], 2.0),
                StepRecord(2, "second", {}, 5.0, [CallScore("base", 1.0, [])]),
                RewindRecord(0),
                bad,
            )
        assert await store.get_run() is None
        assert await stored_episodes(store) == before
        assert await store.batches(after_step=0) == []
        assert await store.steps() == [StepRecord(1, "first", {}, 4.0)]
        assert await store.call_totals() == CallTotals()
        # The base was not stored, so nothing may depend on it.
        call = make_call("next", [1, 2, 3, 4], [5], episode_id="known", parent=base)
        await store.append(call)
        assert await store.calls(["known"]) == {"known": [call]}

    async def test_records_of_one_append_may_need_each_other(self, store: SampleStore) -> None:
        calls = conversation(2)
        score = CallScore(calls[1].call_id, 0.5, [])
        batch = BatchRecord("batch", 1, ["episode"], 2.0)
        await store.append(
            make_episode(),
            *calls,
            ended("episode"),
            batch,
            StepRecord(1, "batch", {}, 3.0, [score]),
        )
        assert (await store.calls(["episode"]))["episode"] == calls
        assert await store.batches(after_step=0) == [batch]
        assert await store.scores("episode") == {calls[1].call_id: score}

    async def test_a_batch_has_its_episodes(self, store: SampleStore) -> None:
        await store.append(ended("a"), ended("b"), ended("c"), aborted("d"), aborted("e"))
        batch = BatchRecord("batch", 1, ["c", "a"], 2.5, aborted_ids=["e"], credit={"math": -0.25})
        await store.append(batch)
        assert await store.batches(after_step=0) == [batch]
        assert await owners(store) == {
            "a": "batch",
            "b": None,
            "c": "batch",
            "d": None,
            "e": "batch",
        }

    async def test_only_batches_say_which_episodes_they_have(self, store: SampleStore) -> None:
        await store.append(replace(aborted("a"), batch_id="another"), aborted("b"))
        assert await owners(store) == {"a": None, "b": None}
        await store.append(BatchRecord("batch", 1, [], 2.0, aborted_ids=["b"]))
        await store.append(replace(aborted("b"), final=True))
        assert await owners(store) == {"a": None, "b": "batch"}
        stored = await store.get_episode("b")
        assert stored is not None
        assert stored.final

    async def test_a_batch_is_replaced(self, store: SampleStore) -> None:
        await store.append(ended("a"), ended("b"), ended("c"))
        await store.append(BatchRecord("batch", 2, ["a", "b"], 2.0))
        await store.append(BatchRecord("batch", 1, ["c", "b"], 2.0))
        assert await store.batches(after_step=0) == [BatchRecord("batch", 1, ["c", "b"], 2.0)]
        assert await owners(store) == {"a": None, "b": "batch", "c": "batch"}

    async def test_episodes_move_to_another_batch(self, store: SampleStore) -> None:
        await store.append(ended("a"), ended("b"), ended("c"))
        await store.append(BatchRecord("batch", 1, ["a", "b", "c"], 2.0))
        kept = BatchRecord("batch", 1, ["a", "c"], 2.0)
        bad = BatchRecord("bad", 1, ["b"], 3.0, refused="it cannot be processed")
        await store.append(kept, bad)
        assert await store.batches(after_step=0) == [kept]
        assert await store.batches(after_step=0, refused=True) == [bad]
        assert await owners(store) == {"a": "batch", "b": "bad", "c": "batch"}
        # Taken from a batch that is not written again.
        await store.append(BatchRecord("third", 2, ["a"], 4.0))
        assert await store.batches(after_step=0) == [
            BatchRecord("batch", 1, ["c"], 2.0),
            BatchRecord("third", 2, ["a"], 4.0),
        ]

    async def test_a_refused_batch_is_kept_apart(self, store: SampleStore) -> None:
        await store.append(ended("a"), ended("b"))
        for step, episode in ((1, "a"), (2, "b")):
            await store.append(BatchRecord(f"batch-{episode}", step, [episode], 2.0))
        refused = BatchRecord("batch-a", 1, ["a"], 2.0, refused="its loss is NaN")
        await store.append(refused)
        assert await store.batches(after_step=0) == [BatchRecord("batch-b", 2, ["b"], 2.0)]
        assert await store.batches(after_step=0, refused=True) == [refused]
        assert await store.batches(after_step=1, refused=True) == []
        assert await owners(store) == {"a": "batch-a", "b": "batch-b"}

    @pytest.mark.parametrize("bad", ["open", "aborted", "prepared", "unknown"])
    async def test_a_batch_has_episodes_that_have_ended(self, store: SampleStore, bad: str) -> None:
        prepared = replace(make_episode("prepared"), state="prepared", reward=1.0)
        await store.append(ended("good"), make_episode("open"), aborted("aborted"), prepared)
        with pytest.raises(StoreError, match=bad):
            await store.append(BatchRecord("batch", 1, ["good", bad], 2.0))
        with pytest.raises(StoreError, match="good"):
            await store.append(BatchRecord("batch", 1, [], 2.0, aborted_ids=["good"]))
        assert await store.batches(after_step=0) == []
        assert (await owners(store))["good"] is None

    async def test_batches_are_in_order_of_step_and_after_the_given_one(
        self, store: SampleStore
    ) -> None:
        await store.append(ended("a"), ended("b"), ended("c"))
        for step, episode in ((3, "c"), (1, "a"), (2, "b")):
            await store.append(BatchRecord(f"batch-{step}", step, [episode], 2.0))
        assert [b.step for b in await store.batches(after_step=0)] == [1, 2, 3]
        assert [b.step for b in await store.batches(after_step=2)] == [3]

    async def test_a_step_is_replaced_when_it_is_trained_again(self, store: SampleStore) -> None:
        await store.append(StepRecord(2, "b2", {"loss": 0.5}, 5.0))
        await store.append(StepRecord(1, "b1", {"loss": 1.0, "kl": 0.25}, 4.0))
        await store.append(StepRecord(2, "b2", {"loss": 0.25}, 6.0, config_json="{}"))
        assert await store.steps() == [
            StepRecord(1, "b1", {"loss": 1.0, "kl": 0.25}, 4.0),
            StepRecord(2, "b2", {"loss": 0.25}, 6.0, config_json="{}"),
        ]

    async def test_scores_come_back_with_the_episode_they_are_of(self, store: SampleStore) -> None:
        calls = conversation(3)
        await store.append(make_episode(), *calls)
        scores = [
            CallScore(call.call_id, 0.5 - i, [-0.25, -1.5, i]) for i, call in enumerate(calls)
        ]
        await store.append(StepRecord(1, "b1", {}, 4.0, scores[:2]))
        assert await store.scores("episode") == {s.call_id: s for s in scores[:2]}
        assert await store.scores("another") == {}
        assert await store.steps() == [StepRecord(1, "b1", {}, 4.0)]

    async def test_a_step_that_is_trained_again_replaces_its_scores(
        self, store: SampleStore
    ) -> None:
        calls = conversation(2)
        await store.append(make_episode(), *calls)
        first, second = (call.call_id for call in calls)
        both = [CallScore(first, 1.0, []), CallScore(second, 1.0, [])]
        await store.append(StepRecord(1, "b1", {}, 4.0, both))
        await store.append(StepRecord(1, "b1", {}, 5.0, [CallScore(first, 2.0, [-0.5])]))
        assert await store.scores("episode") == {first: CallScore(first, 2.0, [-0.5])}

    async def test_a_call_has_the_score_of_its_last_step(self, store: SampleStore) -> None:
        (call,) = conversation(1)
        await store.append(make_episode(), call)
        for step in (2, 1):
            score = CallScore(call.call_id, step / 2, [])
            await store.append(StepRecord(step, f"b{step}", {}, 4.0, [score]))
        assert await store.scores("episode") == {call.call_id: CallScore(call.call_id, 1.0, [])}

    async def test_steps_of_lost_weights_are_forgotten(self, store: SampleStore) -> None:
        (call,) = conversation(1)
        await store.append(make_episode(), call)
        for step in (1, 2, 3):
            score = CallScore(call.call_id, step / 2, [])
            await store.append(StepRecord(step, f"b{step}", {}, 5.0, [score]))
        await store.append(RewindRecord(1))
        assert [s.step for s in await store.steps()] == [1]
        assert await store.scores("episode") == {call.call_id: CallScore(call.call_id, 0.5, [])}

    async def test_a_rewind_keeps_episodes_calls_and_batches(self, store: SampleStore) -> None:
        call = make_call("call", [1], [2])
        await store.append(make_episode(), call, ended("episode"))
        batches = [BatchRecord("a", 1, ["episode"], 2.0), BatchRecord("b", 2, [], 2.0)]
        await store.append(*batches)
        for batch in batches:
            await store.append(StepRecord(batch.step, batch.batch_id, {}, 5.0))
        await store.append(RewindRecord(0))
        assert await store.steps() == []
        assert await store.batches(after_step=0) == batches
        assert await store.calls(["episode"]) == {"episode": [call]}
        assert (await owners(store))["episode"] == "a"

    async def test_calls_and_their_tokens_are_added_up(self, store: SampleStore) -> None:
        calls = conversation(3)
        await store.append(make_episode(), calls[0])
        for call in calls[1:]:
            await store.append(call)
        tokens = sum(len(call.token_ids) for call in calls)
        assert await store.call_totals() == CallTotals(3, tokens, 9)

    async def test_everything_is_there_when_the_store_is_opened_again(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        calls = conversation(6)
        run, batch = RunRecord("run", "{}", 1.0, active=True), BatchRecord("batch", 1, ["a"], 2.0)
        await store.append(run)
        await store.append(ended("a"), make_episode())
        for call in calls[:4]:
            await store.append(call)
        await store.append(batch)
        score = CallScore(calls[0].call_id, 1.0, [-0.5])
        await store.append(StepRecord(1, "batch", {"loss": 0.5}, 3.0, [score]))
        episodes, totals = await stored_episodes(store), await store.call_totals()
        await store.close()

        again = await self.make_store(tmp_path)
        await again.open()
        assert await again.get_run() == run
        assert await stored_episodes(again) == episodes
        assert await again.call_totals() == totals
        assert await again.batches(after_step=0) == [batch]
        assert await again.steps() == [StepRecord(1, "batch", {"loss": 0.5}, 3.0)]
        assert await again.scores("episode") == {score.call_id: score}
        for call in calls[4:]:
            await again.append(call)
        assert (await again.calls(["episode"]))["episode"] == calls
        await again.close()

    async def test_a_run_is_read_beside_the_server_that_writes_it(
        self, store: SampleStore, tmp_path: Path
    ) -> None:
        calls = conversation(2)
        batch = BatchRecord("batch", 1, ["episode"], 2.0)
        score = CallScore(calls[0].call_id, 1.0, [-0.5])
        await store.append(RunRecord("run", "{}", 1.0), make_episode(), *calls, ended("episode"))
        await store.append(batch, StepRecord(1, "batch", {"loss": 0.5}, 3.0, [score]))
        reader = await self.make_store(tmp_path)
        await reader.open(read_only=True)
        assert await reader.get_run() == await store.get_run()
        assert await stored_episodes(reader) == await stored_episodes(store)
        assert await reader.get_episode("episode") == await store.get_episode("episode")
        assert (await reader.calls(["episode"]))["episode"] == calls
        assert await reader.scores("episode") == {score.call_id: score}
        assert await reader.batches(after_step=0) == [batch]
        assert await reader.steps() == await store.steps()
        assert await reader.call_totals() == await store.call_totals()
        with pytest.raises(StoreError):
            await reader.append(make_episode("another"))
        await store.append(make_episode("later"))
        await reader.close()
        assert [e.episode_id for e in await stored_episodes(store)] == ["episode", "later"]

    async def test_a_reader_creates_nothing(self, tmp_path: Path) -> None:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        reader = await self.make_store(run_dir)
        with pytest.raises(StoreError):
            await reader.open(read_only=True)
        await reader.close()
        # Nothing is left that a server would mistake for a run.
        run_dir.rmdir()

    async def test_what_was_requested_before_closing_is_written(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.append(make_episode())
        calls = conversation(20)
        writes = [asyncio.ensure_future(store.append(call)) for call in calls]
        # After one turn of the event loop, every write has been requested, in order.
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*writes)
        again = await self.make_store(tmp_path)
        await again.open()
        assert (await again.calls(["episode"]))["episode"] == calls
        await again.close()

    async def test_a_write_is_carried_out_although_its_caller_is_cancelled(
        self, store: SampleStore
    ) -> None:
        await store.append(make_episode())
        calls = conversation(5)
        writes = [asyncio.ensure_future(store.append(call)) for call in calls]
        await asyncio.sleep(0)
        for write in writes[1:4]:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        # Writes are carried out in order, so those before this one are.
        await store.append(make_call("last", [1], [2], index=9))
        assert (await store.calls(["episode"]))["episode"][:5] == calls

    async def test_a_run_has_one_writer(self, store: SampleStore, tmp_path: Path) -> None:
        await store.append(make_episode())
        second = await self.make_store(tmp_path)
        with pytest.raises(StoreError):
            await second.open()
        await second.close()
        await store.append(ended("episode"))
        await store.close()
        await second.open()
        assert [e.state for e in await stored_episodes(second)] == ["ended"]
        await second.append(make_episode("later"))
        await second.close()

    async def test_runs_are_apart(self, store: SampleStore, tmp_path: Path) -> None:
        await store.append(make_episode("here"))
        # The server creates the run directory.
        (tmp_path / "another").mkdir()
        other = await self.make_store(tmp_path / "another")
        await other.open()
        await other.append(make_episode("there"))
        assert [e.episode_id for e in await stored_episodes(other)] == ["there"]
        await other.close()
        assert [e.episode_id for e in await stored_episodes(store)] == ["here"]

    @pytest.mark.skipif(os.name != "posix", reason="a process inherits pipes on POSIX alone")
    @pytest.mark.parametrize("acknowledged", [1, 25, 90])
    async def test_what_was_acknowledged_survives_kill_9(
        self, killed_writer: _KilledWriter, tmp_path: Path, acknowledged: int
    ) -> None:
        """A process writes episodes until it is killed, in the middle of whatever it does."""
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        lines = killed_writer(acknowledged, run_dir)
        # A server that is started again waits until the lock of the killed one is gone.
        store = PatientStore(await self.make_store(run_dir), "the store")
        await store.open()
        episodes = {e.episode_id: e for e in await stored_episodes(store)}
        calls = await store.calls(list(episodes))
        assert len(lines) >= acknowledged
        for name, count in (line.rsplit(" ", 1) for line in lines):
            if count == "ended":
                assert episodes[name].state == "ended"
            assert len(calls[name]) >= (_TURNS if count == "ended" else int(count))
        for name, stored in calls.items():
            # No call is there without those that were requested before it.
            assert stored == conversation(_TURNS, episode_id=name)[: len(stored)]
        assert (await store.call_totals()).calls == sum(map(len, calls.values()))
        await store.append(make_episode("after"))
        await store.close()

    async def make_small_store(self, run_dir: Path) -> SampleStore:  # noqa: ARG002
        """Create a store, not open yet, that is full with less than 64 MiB of records.

        Override it if the store has a limit or a quota.
        """
        pytest.skip("this suite makes no store that can be full")

    async def test_a_full_store_says_so_and_keeps_what_it_has(self, tmp_path: Path) -> None:
        store = await self.make_small_store(tmp_path)
        await store.open()
        kept = []

        async def fill() -> None:
            for number in range(1000):
                name = f"e{number}"
                call = make_call(f"call-{number}", [number] * 5000, [1], episode_id=name)
                message = PlacedMessage(0, 5000, MessageText("user", "long " * 10_000))
                await store.append(make_episode(name), replace(call, messages=(message,)))
                kept.append(name)

        with pytest.raises(StoreFullError):
            await fill()
        assert [e.episode_id for e in await stored_episodes(store)] == kept
        assert (await store.call_totals()).calls == len(kept)
        assert [len(calls) for calls in (await store.calls(kept)).values()] == [1] * len(kept)
        await store.close()

    async def interrupt(self, store: SampleStore) -> None:  # noqa: ARG002
        """Break the connections of an open store to its database once.

        Override it, unless the store has no connections.
        """
        pytest.skip("this suite does not say how a connection of the store is lost")

    @pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
    async def test_a_lost_connection_loses_nothing(self, store: SampleStore, busy: bool) -> None:
        """The server repeats what failed, as `ajet_server.store.patient_store` does."""
        patient = PatientStore(store, "the store")
        names = [f"e{number}" for number in range(40)]
        await patient.append(make_episode("e0"))
        early, late = (names[1:20], names[20:]) if busy else ([], names[1:])
        writes = [asyncio.ensure_future(patient.append(make_episode(name))) for name in early]
        await asyncio.sleep(0)
        try:
            await self.interrupt(store)
        finally:
            await asyncio.gather(*writes)
        assert await patient.get_episode("e0") == make_episode("e0")
        await asyncio.gather(*(patient.append(make_episode(name)) for name in late))
        assert sorted(e.episode_id for e in await stored_episodes(patient)) == sorted(names)

    async def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.close()
        await store.close()
        with pytest.raises(StoreError):
            await store.append(make_episode())
        with pytest.raises(StoreError):
            await store.get_episode("episode")


_TURNS = 6


async def _write_forever(opening: Awaitable[SampleStore], pipe: int) -> None:
    """Write, and acknowledge each write by a line: the episode and its calls so far, or "ended"."""
    store = await opening
    await store.open()

    async def play(name: str) -> None:
        await store.append(make_episode(name))
        for number, call in enumerate(conversation(_TURNS, episode_id=name), start=1):
            await store.append(call)
            os.write(pipe, f"{name} {number}\n".encode())
        await store.append(ended(name))
        os.write(pipe, f"{name} ended\n".encode())

    for round_ in itertools.count():
        await asyncio.gather(*(play(f"{round_}-{number}") for number in range(4)))


def ended(episode_id: str) -> EpisodeRecord:
    """An episode that has ended."""
    return replace(make_episode(episode_id), state="ended", reward=1.0, finished_at=1700000009.0)


def aborted(episode_id: str) -> EpisodeRecord:
    """An episode that was aborted."""
    return replace(make_episode(episode_id), state="aborted", cause="timeout", reason="late")


async def stored_episodes(
    store: SampleStore, query: EpisodeQuery = ALL_EPISODES
) -> list[EpisodeRecord]:
    """Return episodes of a store."""
    return [episode async for episode in store.episodes(query)]


async def owners(store: SampleStore) -> dict[str, str | None]:
    """Return the batch of each episode."""
    return {episode.episode_id: episode.batch_id for episode in await stored_episodes(store)}
