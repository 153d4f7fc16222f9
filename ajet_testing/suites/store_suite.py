"""What every sample store must do. Subclass `SampleStoreSuite` in a test module; needs pytest-asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeRecord,
    EvaluationCount,
    GroupCount,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.protocol import ABORT_CAUSES
from ajet_testing.suites.samples import conversation, make_call, make_episode, make_joint


class SampleStoreSuite:
    """Conformance tests of a `SampleStore`; a subclass says how one is made.

    ::

        class TestMyStore(SampleStoreSuite):
            async def make_store(self, run_dir):
                return MyStore(MySettings(), WorkerContext(run_dir))
    """

    pytestmark = pytest.mark.asyncio

    async def make_store(self, run_dir: Path) -> SampleStore:
        """A store for `run_dir` that is not open yet."""
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SampleStore]:
        """An open store."""
        store = await self.make_store(tmp_path)
        await store.open()
        yield store
        await store.close()

    async def ended(
        self, store: SampleStore, *episode_ids: str, reward: float = 1.0
    ) -> list[EpisodeRecord]:
        """Add episodes and end them."""
        finished = []
        for episode_id in episode_ids:
            episode = make_episode(episode_id)
            await store.add_episode(episode)
            outcome = replace(episode, state="ended", reward=reward, finished_at=1700000009.0)
            finished.append(await store.finish_episode(outcome))
        return finished

    async def test_a_new_store_is_empty(self, store: SampleStore) -> None:
        assert await store.get_run() is None
        assert await store.episodes() == []
        assert await store.batches(after_step=0) == []
        assert await store.steps() == []
        assert set((await store.counters()).values()) == {0}

    async def test_the_run_is_replaced(self, store: SampleStore) -> None:
        await store.put_run(RunRecord("run", '{"a": 1}', 1.5))
        await store.put_run(RunRecord("run", '{"a": 2}', 1.5, active=True, paused="why"))
        assert await store.get_run() == RunRecord("run", '{"a": 2}', 1.5, True, "why")

    async def test_an_episode_comes_back_as_it_was(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        assert await store.get_episode("episode") == make_episode()
        assert await store.get_episode("another") is None

    async def test_an_outcome_comes_back_as_it_was(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        outcome = replace(
            make_episode(),
            state="ended",
            reward=-0.5,
            components={"format": -0.5},
            call_rewards={"call": 0.25},
            agent_rewards={"planner": -1.5},
            metadata={"host": "a"},
            finished_at=1700000009.0,
        )
        assert await store.finish_episode(outcome) == outcome
        assert await store.get_episode("episode") == outcome

    async def test_the_first_outcome_stands(self, store: SampleStore) -> None:
        (first,) = await self.ended(store, "episode")
        second = replace(make_episode(), state="aborted", reason="too late")
        assert await store.finish_episode(second) == first
        assert await store.get_episode("episode") == first
        assert (await store.counters())["episodes_aborted"] == 0

    async def test_an_unknown_episode_cannot_be_finished(self, store: SampleStore) -> None:
        with pytest.raises(StoreError, match="episode"):
            await store.finish_episode(replace(make_episode(), state="aborted"))

    async def test_an_episode_id_is_used_once(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        with pytest.raises(StoreError, match="episode"):
            await store.add_episode(replace(make_episode(), tag="other"))
        assert await store.episodes() == [make_episode()]

    async def test_an_episode_is_found_by_its_claim(self, store: SampleStore) -> None:
        claimed = replace(make_episode("claimed"), claim_hash="ab" * 32)
        await store.add_episode(claimed)
        await store.add_episode(make_episode("without"))
        await store.add_episode(make_episode("without-too"))
        assert await store.claimed("ab" * 32) == claimed
        assert await store.claimed("cd" * 32) is None
        assert await store.claimed("") is None
        with pytest.raises(StoreError):
            await store.add_episode(replace(make_episode("again"), claim_hash="ab" * 32))

    async def test_episodes_are_filtered_in_order_of_their_claims(self, store: SampleStore) -> None:
        await store.add_episode(make_episode("z-open"))
        await self.ended(store, "y", "x", "w")
        await store.add_episode(make_episode("v"))
        await store.finish_episode(replace(make_episode("v"), state="aborted", reason="lost"))
        await store.add_batch(BatchRecord("batch", 1, ["x"], 2.0))

        async def ids(**filters: object) -> list[str]:
            return [e.episode_id for e in await store.episodes(**filters)]  # type: ignore[arg-type]

        assert await ids() == ["z-open", "y", "x", "w", "v"]
        assert await ids(state="open") == ["z-open"]
        assert await ids(state="aborted") == ["v"]
        assert await ids(state="ended", batched=False) == ["y", "w"]
        assert await ids(state="ended", batched=True) == ["x"]
        assert await ids(batched=True) == ["x"]

    async def test_a_prepared_episode_comes_back_as_it_was(self, store: SampleStore) -> None:
        await store.add_episode(make_joint())
        outcome = replace(
            make_joint(), state="prepared", reward=0.5, components={"a": 1.0}, metadata={"b": "c"}
        )
        assert await store.prepare_episode(outcome) == outcome
        assert await store.get_episode("episode") == outcome
        assert await store.episodes(state="prepared") == [outcome]
        assert (await store.counters())["episodes_ended"] == 0

    async def test_what_was_prepared_first_stands_and_is_ended_or_aborted_once(
        self, store: SampleStore
    ) -> None:
        await store.add_episode(make_joint("committed"))
        await store.add_episode(make_joint("given-up", joint_id="another"))
        for episode_id, joint_id in (("committed", "joint"), ("given-up", "another")):
            first = replace(make_joint(episode_id, joint_id=joint_id), state="prepared", reward=1.0)
            await store.prepare_episode(first)
            assert await store.prepare_episode(replace(first, reward=2.0)) == first
        ended = replace(make_joint("committed"), state="ended", reward=1.0, finished_at=1.0)
        assert await store.finish_episode(ended) == ended
        assert await store.prepare_episode(replace(ended, state="prepared")) == ended
        given_up = replace(make_joint("given-up", joint_id="another"), state="aborted", reason="x")
        assert await store.finish_episode(given_up) == given_up
        assert await store.finish_episode(replace(given_up, state="ended")) == given_up
        counters = await store.counters()
        assert (counters["joint_ended"], counters["joint_aborted"]) == (1, 1)

    async def test_a_prepared_episode_is_in_no_batch(self, store: SampleStore) -> None:
        await store.add_episode(make_joint())
        await store.prepare_episode(replace(make_joint(), state="prepared", reward=1.0))
        with pytest.raises(StoreError, match="prepared"):
            await store.add_batch(BatchRecord("batch", 1, ["episode"], 2.0))
        with pytest.raises(StoreError, match="prepared"):
            await store.finish_episode(replace(make_joint(), state="prepared"))
        with pytest.raises(StoreError, match="unknown"):
            await store.prepare_episode(replace(make_episode("unknown"), state="prepared"))
        with pytest.raises(StoreError, match="not prepared"):
            await store.prepare_episode(replace(make_joint(), state="ended"))

    async def test_parts_are_found_by_their_joint_episode(self, store: SampleStore) -> None:
        await store.add_episode(make_episode("alone"))
        await store.add_episode(make_episode("alone-too"))
        await store.add_episode(make_joint())
        assert await store.joint_parts(["joint", "unknown"]) == {"joint": make_joint()}
        with pytest.raises(StoreError):
            await store.add_episode(make_joint("twice"))

    async def test_calls_come_back_as_they_were(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        calls = conversation(5)
        for call in calls:
            await store.add_call(call)
        assert await store.calls(["episode", "another"]) == {"episode": calls, "another": []}

    async def test_calls_are_in_order_of_their_index(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        calls = conversation(4, hints=False)
        for call in reversed(calls):
            await store.add_call(call)
        assert (await store.calls(["episode"]))["episode"] == calls

    async def test_branches_of_a_conversation_come_back_as_they_were(
        self, store: SampleStore
    ) -> None:
        await store.add_episode(make_episode())
        root = make_call("root", [1, 2, 3], [4, 5])
        calls = [
            root,
            make_call("extends", [1, 2, 3, 4, 5, 6], [7], index=1, parent=root),
            make_call("extends-too", [1, 2, 3, 4, 5], [8, 9], index=2, parent=root),
            make_call("cuts-reply", [1, 2, 3, 4, 6], [7], index=3, parent=root),
            make_call("cuts-prompt", [1, 2], [3], index=4, parent=root),
            make_call("rewrites", [9, 9], [], index=5, parent=root),
        ]
        for call in calls:
            await store.add_call(call)
        assert (await store.calls(["episode"]))["episode"] == calls

    async def test_a_base_the_store_never_saw_loses_nothing(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        base = conversation(1)[0]
        call = make_call("call", [*base.token_ids, 2], [3], parent=base)
        await store.add_call(call)
        assert (await store.calls(["episode"]))["episode"] == [call]

    async def test_a_base_is_still_known_when_the_store_is_opened_again(
        self, tmp_path: Path
    ) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.add_episode(make_episode())
        first, second = conversation(2)
        await store.add_call(first)
        await store.close()
        await store.open()
        await store.add_call(second)
        stored = (await store.calls(["episode"]))["episode"]
        assert stored == [first, second]
        assert stored[1].parent_call_id == first.call_id
        await store.close()

    async def test_a_call_of_an_unknown_episode_is_refused(self, store: SampleStore) -> None:
        with pytest.raises(StoreError, match="episode"):
            await store.add_call(make_call("call", [1], [2]))
        assert (await store.counters())["calls"] == 0

    async def test_a_call_id_is_used_once(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        call = make_call("call", [1], [2])
        await store.add_call(call)
        with pytest.raises(StoreError, match="call"):
            await store.add_call(make_call("call", [3], [4], index=1))
        assert (await store.calls(["episode"]))["episode"] == [call]

    async def test_a_write_that_fails_fails_alone(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        calls = conversation(6)
        writes = [store.add_call(call) for call in [*calls[:3], calls[0], *calls[3:]]]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(r) for r in results if r is not None] == [StoreError]
        assert isinstance(results[3], StoreError)
        assert (await store.calls(["episode"]))["episode"] == calls
        assert (await store.counters())["calls"] == 6

    async def test_a_batch_takes_its_episodes(self, store: SampleStore) -> None:
        await self.ended(store, "a", "b", "c")
        batch = BatchRecord("batch", 1, ["c", "a"], 2.5, credit={"math": -0.25})
        await store.add_batch(batch)
        assert await store.batches(after_step=0) == [batch]
        taken = {e.episode_id: e.batch_id for e in await store.episodes()}
        assert taken == {"a": "batch", "b": None, "c": "batch"}

    @pytest.mark.parametrize("bad", ["open", "aborted", "unknown", "batched", "good"])
    async def test_a_batch_is_added_wholly_or_not_at_all(
        self, store: SampleStore, bad: str
    ) -> None:
        await self.ended(store, "good", "batched")
        await store.add_episode(make_episode("open"))
        await store.add_episode(make_episode("aborted"))
        await store.finish_episode(replace(make_episode("aborted"), state="aborted"))
        first = BatchRecord("first", 1, ["batched"], 2.0)
        await store.add_batch(first)
        before = await store.episodes()
        # "good" twice: the second time it has a batch already.
        with pytest.raises(StoreError, match=bad):
            await store.add_batch(BatchRecord("second", 2, ["good", bad], 3.0))
        assert await store.episodes() == before
        assert await store.batches(after_step=0) == [first]

    async def test_a_batch_replaces_nothing(self, store: SampleStore) -> None:
        await self.ended(store, "a", "b")
        first = BatchRecord("batch", 1, ["a"], 2.0)
        await store.add_batch(first)
        with pytest.raises(StoreError, match="batch"):
            await store.add_batch(BatchRecord("batch", 2, ["b"], 3.0))
        assert await store.batches(after_step=0) == [first]
        assert (await store.episodes(batched=True))[0].episode_id == "a"

    async def test_batches_are_in_order_of_step_and_after_the_given_one(
        self, store: SampleStore
    ) -> None:
        await self.ended(store, "a", "b", "c")
        batches = [
            BatchRecord(f"batch-{s}", s, [e], 2.0) for s, e in ((3, "c"), (1, "a"), (2, "b"))
        ]
        for batch in batches:
            await store.add_batch(batch)
        assert [b.step for b in await store.batches(after_step=0)] == [1, 2, 3]
        assert [b.step for b in await store.batches(after_step=2)] == [3]

    async def test_a_refused_batch_is_kept_and_not_trained(self, store: SampleStore) -> None:
        await self.ended(store, "a", "b")
        for step, episode in ((1, "a"), (2, "b")):
            await store.add_batch(BatchRecord(f"batch-{episode}", step, [episode], 2.0))
        await store.refuse_batch("batch-a", "its loss is NaN")
        assert await store.batches(after_step=0) == [BatchRecord("batch-b", 2, ["b"], 2.0)]
        refused = BatchRecord("batch-a", 1, ["a"], 2.0, refused="its loss is NaN")
        assert await store.batches(after_step=0, refused=True) == [refused]
        assert await store.episodes(batched=False) == []

    async def test_episodes_of_a_batch_are_set_aside_and_the_others_trained(
        self, store: SampleStore
    ) -> None:
        await self.ended(store, "a", "b", "c")
        await store.add_batch(BatchRecord("batch", 1, ["a", "b", "c"], 2.0))
        aside = BatchRecord("aside", 1, ["b"], 3.0, refused="it cannot be processed")
        await store.split_batch("batch", aside)
        assert await store.batches(after_step=0) == [BatchRecord("batch", 1, ["a", "c"], 2.0)]
        assert await store.batches(after_step=0, refused=True) == [aside]
        for wrong in (["a", "b"], ["never"]):
            with pytest.raises(StoreError, match="has no ended episode"):
                await store.split_batch("batch", replace(aside, batch_id="c", episode_ids=wrong))
        assert await store.batches(after_step=0) == [BatchRecord("batch", 1, ["a", "c"], 2.0)]

    async def test_what_was_aborted_meanwhile_belongs_to_a_batch_and_is_not_trained(
        self, store: SampleStore
    ) -> None:
        await self.ended(store, "a")
        for episode in ("lost", "later", "open"):
            await store.add_episode(make_episode(episode))
        for episode in ("lost", "later"):
            await store.finish_episode(replace(make_episode(episode), state="aborted"))
        batch = BatchRecord("batch", 1, ["a"], 2.0, aborted_ids=["lost"])
        await store.add_batch(batch)
        assert await store.batches(after_step=0) == [batch]
        left = await store.episodes(state="aborted", batched=False)
        assert [e.episode_id for e in left] == ["later"]
        for wrong in ("lost", "open", "never"):
            with pytest.raises(StoreError, match=wrong):
                await store.add_batch(BatchRecord(wrong, 2, [], 2.0, aborted_ids=[wrong]))

    async def test_it_is_known_that_nobody_tries_an_episode_again(self, store: SampleStore) -> None:
        await self.ended(store, "ended")
        for episode in ("at-once", "late"):
            await store.add_episode(make_episode(episode))
        at_once = replace(make_episode("at-once"), state="aborted", cause="error", final=True)
        late = replace(make_episode("late"), state="aborted", cause="lease_expired")
        assert await store.finish_episode(at_once) == at_once
        assert await store.finish_episode(late) == late
        for _ in range(2):
            assert await store.give_up("late") == replace(late, final=True)
        assert await store.get_episode("late") == replace(late, final=True)
        assert await store.get_episode("at-once") == at_once
        for wrong in ("ended", "never"):
            with pytest.raises(StoreError, match=wrong):
                await store.give_up(wrong)

    async def test_an_unknown_batch_cannot_be_refused(self, store: SampleStore) -> None:
        with pytest.raises(StoreError, match="lost"):
            await store.refuse_batch("lost", "why not")

    async def test_a_batch_is_that_of_the_step_that_trained_it(self, store: SampleStore) -> None:
        await self.ended(store, "a", "b")
        for step, episode in ((1, "a"), (2, "b")):
            await store.add_batch(BatchRecord(f"batch-{episode}", step, [episode], 2.0))
        await store.refuse_batch("batch-a", "its loss is NaN")
        await store.add_step(StepRecord(1, "batch-b", {}, 5.0))
        assert await store.batches(after_step=0) == [BatchRecord("batch-b", 1, ["b"], 2.0)]
        assert await store.batches(after_step=1) == []

    async def test_steps_of_lost_weights_are_forgotten(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        (call,) = conversation(1)
        await store.add_call(call)
        for step in (1, 2, 3):
            await store.add_step(
                StepRecord(step, f"b{step}", {}, 5.0), [CallScore(call.call_id, step / 2, [])]
            )
        await store.rewind(1)
        assert [s.step for s in await store.steps()] == [1]
        assert await store.scores("episode") == {call.call_id: CallScore(call.call_id, 0.5, [])}

    async def test_what_was_sampled_by_given_up_weights_is_refused(
        self, store: SampleStore
    ) -> None:
        await self.ended(store, "a", "b", "c", "d")
        for step, episode in ((1, "a"), (2, "b")):
            await store.add_batch(BatchRecord(f"batch-{episode}", step, [episode], 2.0))
        lost = replace(make_episode("e"), state="aborted", cause="timeout", finished_at=3.0)
        evaluated = replace(make_episode("f"), state="ended", kind="eval", reward=1.0)
        for record in (lost, evaluated, make_episode("g")):
            await store.add_episode(record)
        await store.rewind(1, discard=BatchRecord("rest", 2, [], 5.0, refused="gone back"))
        assert [b.batch_id for b in await store.batches(after_step=0)] == ["batch-a"]
        first, rest = await store.batches(after_step=0, refused=True)
        assert (first.batch_id, first.refused) == ("batch-b", "gone back")
        assert rest == BatchRecord(
            "rest", 2, ["c", "d"], 5.0, refused="gone back", aborted_ids=["e"]
        )
        # Evaluations and open episodes are not about what is trained.
        assert [e.episode_id for e in await store.episodes(batched=False)] == ["f", "g"]
        # Again, as after a kill: nothing is left to refuse.
        await store.rewind(1, discard=BatchRecord("again", 2, [], 6.0, refused="gone back"))
        assert len(await store.batches(after_step=0, refused=True)) == 2

    async def test_a_run_remembers_what_it_is_to_go_back_to(self, store: SampleStore) -> None:
        run = RunRecord("r", "{}", 1.0, active=True, back_to=3, retrains=True)
        await store.put_run(run)
        assert await store.get_run() == run

    async def test_episodes_of_a_group_are_counted_for_the_client_that_claimed_them(
        self, store: SampleStore
    ) -> None:
        first = make_episode("open", group="g")
        ended = replace(make_episode("ended", group="g"), state="ended", reward=1.0)
        aborted = replace(make_episode("aborted", group="g"), state="aborted", cause="timeout")
        prepared = replace(make_episode("prepared", group="g"), state="prepared", reward=1.0)
        for record in (
            prepared,
            first,
            ended,
            aborted,
            replace(ended, episode_id="foreign", client_id="another"),
            replace(ended, episode_id="eval", kind="eval"),
            replace(ended, episode_id="other", group="h"),
        ):
            await store.add_episode(record)
        counts = await store.group_counts(["g", "empty"], kind="train", client_id=first.client_id)
        assert counts == {"g": GroupCount(2, 1, 1), "empty": GroupCount(0, 0, 0)}

    async def test_evaluation_episodes_that_are_over_are_counted_by_what_they_belong_to(
        self, store: SampleStore
    ) -> None:
        claimed = replace(make_episode(), kind="eval", task_id="t", tag="x", claim_version=2)
        ended = replace(claimed, state="ended", reward=0.5)
        for number, record in enumerate(
            (
                claimed,
                ended,
                replace(ended, reward=0.25, mixed=True),
                replace(claimed, state="aborted", cause="error"),
                replace(ended, task_id="u"),
                replace(ended, tag="y"),
                replace(ended, client_id="another"),
                replace(ended, claim_version=1),
                replace(ended, kind="train"),
            )
        ):
            await store.add_episode(
                replace(record, episode_id=f"e{number}", state="open", mixed=False)
            )
            if record.state != "open":
                await store.finish_episode(replace(record, episode_id=f"e{number}"))
        counts = await store.evaluation_counts(pass_reward=0.5)
        one = EvaluationCount(claimed.client_id, "x", 2, "t", 1, 1, 0, 0.5, 0)
        assert counts[0] == replace(one, claim_version=1)
        assert sorted(counts[1:], key=str) == sorted(
            [
                replace(one, ended=2, mixed=1, reward_sum=0.75, aborted=1),
                replace(one, task_id="u"),
                replace(one, tag="y"),
                replace(one, client_id="another"),
            ],
            key=str,
        )
        stored = await store.get_episode("e2")
        assert stored is not None
        assert stored.mixed

    async def test_a_step_is_replaced_when_it_is_trained_again(self, store: SampleStore) -> None:
        await store.add_step(StepRecord(2, "b2", {"loss": 0.5}, 5.0))
        await store.add_step(StepRecord(1, "b1", {"loss": 1.0, "kl": 0.25}, 4.0))
        await store.add_step(StepRecord(2, "b2", {"loss": 0.25}, 6.0))
        assert await store.steps() == [
            StepRecord(1, "b1", {"loss": 1.0, "kl": 0.25}, 4.0),
            StepRecord(2, "b2", {"loss": 0.25}, 6.0),
        ]

    async def test_scores_come_back_with_the_episode_they_are_of(self, store: SampleStore) -> None:
        await store.add_episode(make_episode())
        calls = conversation(3)
        for call in calls:
            await store.add_call(call)
        scores = [
            CallScore(call.call_id, 0.5 - i, [-0.25, -1.5, i]) for i, call in enumerate(calls)
        ]
        await store.add_step(StepRecord(1, "b1", {}, 4.0), scores[:2])
        assert await store.scores("episode") == {s.call_id: s for s in scores[:2]}
        assert await store.scores("another") == {}

    async def test_a_step_that_is_trained_again_replaces_its_scores(
        self, store: SampleStore
    ) -> None:
        await store.add_episode(make_episode())
        calls = conversation(2)
        for call in calls:
            await store.add_call(call)
        ids = [call.call_id for call in calls]
        await store.add_step(StepRecord(1, "b1", {}, 4.0), [CallScore(i, 1.0, []) for i in ids])
        await store.add_step(StepRecord(1, "b1", {}, 5.0), [CallScore(ids[0], 2.0, [-0.5])])
        assert await store.scores("episode") == {ids[0]: CallScore(ids[0], 2.0, [-0.5])}

    async def test_a_score_of_an_unknown_call_is_refused_with_its_step(
        self, store: SampleStore
    ) -> None:
        with pytest.raises(StoreError, match="lost"):
            await store.add_step(StepRecord(1, "b1", {}, 4.0), [CallScore("lost", 1.0, [])])
        assert await store.steps() == []

    async def test_counters_add_up(self, store: SampleStore) -> None:
        await self.ended(store, "a", "b")
        await store.add_episode(make_episode("c"))
        await store.finish_episode(replace(make_episode("c"), state="aborted", cause="timeout"))
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

    async def test_everything_is_there_when_the_store_is_opened_again(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        calls = conversation(6)
        await store.put_run(RunRecord("run", "{}", 1.0, active=True))
        await self.ended(store, "a")
        await store.add_episode(make_episode())
        for call in calls[:4]:
            await store.add_call(call)
        await store.add_batch(BatchRecord("batch", 1, ["a"], 2.0))
        await store.add_step(StepRecord(1, "batch", {"loss": 0.5}, 3.0))
        episodes, counters = await store.episodes(), await store.counters()
        await store.close()

        again = await self.make_store(tmp_path)
        await again.open()
        assert await again.get_run() == RunRecord("run", "{}", 1.0, active=True)
        assert await again.episodes() == episodes
        assert await again.counters() == counters
        assert await again.batches(after_step=0) == [BatchRecord("batch", 1, ["a"], 2.0)]
        assert await again.steps() == [StepRecord(1, "batch", {"loss": 0.5}, 3.0)]
        for call in calls[4:]:
            await again.add_call(call)
        assert (await again.calls(["episode"]))["episode"] == calls
        await again.close()

    async def test_what_was_requested_before_closing_is_written(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.add_episode(make_episode())
        calls = conversation(20)
        writes = [asyncio.ensure_future(store.add_call(call)) for call in calls]
        # One turn of the loop: every write is requested, in order.
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*writes)
        again = await self.make_store(tmp_path)
        await again.open()
        assert (await again.calls(["episode"]))["episode"] == calls
        await again.close()

    async def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path)
        await store.open()
        await store.close()
        await store.close()
        with pytest.raises(StoreError):
            await store.add_episode(make_episode())
        with pytest.raises(StoreError):
            await store.get_episode("episode")
