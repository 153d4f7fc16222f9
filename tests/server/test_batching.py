"""The bookkeeping that decides which episodes start and when a batch is full."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import AbortCause, BatchConfig, BatchProgress, Quarantine, RunConfig
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.draws import Draws
from tests.support.batches import builder, episode


def start(batch: BatchBuilder, group: str) -> EpisodeRecord:
    assert batch.may_begin(group)
    found = episode(group)
    batch.opened(found)
    return found


def finish(batch: BatchBuilder, record: EpisodeRecord, reward: float) -> None:
    batch.ended(replace(record, state="ended", reward=reward))


def test_a_task_gets_no_more_places_than_episodes_per_task() -> None:
    batch = builder()
    start(batch, "a"), start(batch, "a")
    assert not batch.may_begin("a")
    assert batch.may_begin("b")


def test_a_batch_has_no_place_for_one_task_too_many() -> None:
    batch = builder()
    start(batch, "a"), start(batch, "b")
    assert not batch.may_begin("c")


def test_an_aborted_episode_frees_its_place() -> None:
    batch = builder()
    first = start(batch, "a")
    start(batch, "a")
    batch.aborted(replace(first, state="aborted"))
    assert batch.may_begin("a")


def test_a_task_that_nobody_works_on_any_more_gives_its_place_to_others() -> None:
    """A client that died with half-rolled tasks must not keep the batch from ever being full."""
    batch = builder()
    for group in "ab":
        finish(batch, start(batch, group), 1.0)
    # Their clients may be about to claim the next episode.
    assert not batch.may_begin("c")
    assert batch.decided == {"a", "b"}
    assert not batch.wait_less()
    assert not batch.may_begin("c")
    assert batch.wait_less()
    for record in [start(batch, g) for g in "ccdd"]:
        finish(batch, record, 1.0)
    assert batch.is_full()
    assert len(batch.take().ended) == 6


def test_an_incomplete_task_takes_its_place_again_when_it_goes_on() -> None:
    batch = builder()
    finish(batch, start(batch, "a"), 1.0)
    again = start(batch, "a")
    start(batch, "b")
    assert not batch.may_begin("c")
    finish(batch, again, 0.0)
    assert batch.progress().ready == 1


def test_full_by_tasks_needs_every_task_complete() -> None:
    batch = builder()
    running = [start(batch, g) for g in "aabb"]
    for record in running[:3]:
        finish(batch, record, 1.0)
    assert not batch.is_full()
    finish(batch, running[3], 0.0)
    assert batch.is_full()
    assert sorted(batch.take().ended) == sorted(r.episode_id for r in running)
    assert not batch.is_full()
    assert batch.may_begin("a")


def test_full_by_episodes_does_not_care_for_tasks() -> None:
    batch = builder("episodes")
    running = [start(batch, g) for g in "aaab"]
    assert not batch.may_begin("z")
    for record in running:
        finish(batch, record, 0.0)
    assert batch.is_full()


def test_equal_rewards_give_their_place_to_another_task() -> None:
    batch = builder("differing_tasks")
    dull = [start(batch, "a"), start(batch, "a")]
    other = [start(batch, "b"), start(batch, "b")]
    for record in dull:
        finish(batch, record, 1.0)
    assert batch.may_begin("c")
    third = [start(batch, "c"), start(batch, "c")]
    for record, reward in zip(other + third, (0.0, 1.0, 0.0, 1.0), strict=True):
        finish(batch, record, reward)
    assert batch.is_full()
    # What was rolled out is consumed too: it has no gradient, but its rewards belong to the mean.
    assert len(batch.take().ended) == 6


@pytest.mark.parametrize("kind", ["call_rewards", "agent_rewards"])
def test_a_task_differs_by_the_rewards_of_its_calls_and_agents_too(kind: str) -> None:
    batch = builder("differing_tasks", tasks=1)
    records = [start(batch, "a"), start(batch, "a")]
    for record, value in zip(records, (0.0, 1.0), strict=True):
        assert not batch.is_full()
        rewards: dict[str, Any] = {kind: {"x": value}}
        batch.ended(replace(record, state="ended", reward=1.0, **rewards))
    assert batch.is_full()


def aborted(
    record: EpisodeRecord, cause: AbortCause = "error", *, final: bool = False
) -> EpisodeRecord:
    return replace(record, state="aborted", cause=cause, reason="it broke", final=final)


def fail(
    batch: BatchBuilder, record: EpisodeRecord, cause: AbortCause = "error", *, final: bool = False
) -> Quarantine | None:
    return batch.aborted(aborted(record, cause, final=final))


def test_a_task_that_fails_for_everyone_is_quarantined_and_replaced() -> None:
    batch = builder(max_aborts_per_task=2)
    notes = [
        fail(batch, start(batch, "a"), cause) for cause in ("error", "timeout", "lease_expired")
    ]
    assert notes[:2] == [None, None]
    assert notes[2] == Quarantine(
        client_id="c", task_id="a", group="a", aborts=3, reason="it broke"
    )
    for record in [start(batch, g) for g in "bbcc"]:
        finish(batch, record, 1.0)
    assert batch.is_full()
    batch.take()
    assert "it broke" in (batch.refuses("c", "a") or "")
    assert batch.progress().quarantined == 1
    batch.readmit()
    assert batch.refuses("c", "a") is None
    start(batch, "a")


def test_a_task_that_succeeds_now_and_then_is_not_quarantined() -> None:
    batch = builder(max_aborts_per_task=1, episodes_per_task=8)
    for _ in range(3):
        fail(batch, start(batch, "a"))
        finish(batch, start(batch, "a"), 1.0)
        batch.take()
    assert batch.refuses("c", "a") is None


def test_what_was_given_up_on_purpose_is_no_failure_of_its_task() -> None:
    batch = builder(max_aborts_per_task=1)
    for _ in range(5):
        fail(batch, start(batch, "a"), "cancelled")
    assert batch.may_begin("a")


def test_a_batch_goes_on_with_what_succeeded_of_a_task_that_fails_too_often() -> None:
    batch = builder(tasks=1, episodes_per_task=4, max_aborts_per_task=2)
    for reward in (0.0, 1.0):
        finish(batch, start(batch, "a"), reward)
    late = start(batch, "a")
    for _ in range(3):
        fail(batch, start(batch, "a"))
    assert not batch.may_begin("a")
    assert not batch.is_full()
    fail(batch, late)
    assert batch.is_full()


def test_episodes_that_nobody_tries_again_are_not_waited_for() -> None:
    batch = builder(tasks=1, episodes_per_task=4)
    for reward in (0.0, 1.0):
        finish(batch, start(batch, "a"), reward)
    for _ in range(2):
        assert not batch.is_full()
        fail(batch, start(batch, "a"), final=True)
    assert batch.is_full()
    assert not batch.may_begin("a")


def test_a_task_of_which_too_little_came_begins_anew_when_somebody_asks_for_it() -> None:
    """A data set with as many tasks as a batch must not end in one that nobody may try again."""
    batch = builder(tasks=1)
    finish(batch, start(batch, "a"), 0.0)
    fail(batch, start(batch, "a"), final=True)
    assert batch.lacking() == [("a", 1, 0)]
    finish(batch, start(batch, "a"), 1.0)
    assert batch.is_full()


def test_another_chance_for_all_tasks_is_none_for_what_clients_gave_up() -> None:
    """Who gave it up does not come back: a batch that waited for it would never be full."""
    batch = builder(tasks=1, episodes_per_task=4, max_aborts_per_task=1)
    for reward in (0.0, 1.0):
        finish(batch, start(batch, "a"), reward)
    for _ in range(2):
        fail(batch, start(batch, "a"), final=True)
    assert batch.is_full()
    batch.readmit()
    assert batch.is_full()


def test_another_chance_is_one_in_the_batch_being_filled() -> None:
    batch = builder(tasks=1, max_aborts_per_task=1)
    for _ in range(2):
        fail(batch, start(batch, "a"))
    batch.readmit()
    for reward in (0.0, 1.0):
        finish(batch, start(batch, "a"), reward)
    assert batch.is_full()


def test_what_its_client_gave_up_by_its_lease_is_not_waited_for_when_it_says_so() -> None:
    batch = builder(tasks=1, episodes_per_task=3)
    for reward in (0.0, 1.0):
        finish(batch, start(batch, "a"), reward)
    lost = start(batch, "a")
    fail(batch, lost, "lease_expired")
    assert not batch.is_full()
    batch.given_up(aborted(lost, "lease_expired", final=True))
    batch.given_up(aborted(lost, "lease_expired", final=True))
    assert batch.is_full()
    assert lost.episode_id in batch.take().aborted
    # It says nothing of the next batch.
    start(batch, "a")
    batch.given_up(aborted(lost, "lease_expired", final=True))
    assert [batch.may_begin("a") for _ in range(2) if start(batch, "a")] == [True, False]


@given(
    st.sampled_from(["tasks", "episodes", "differing_tasks"]),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["open", "abort", "give up", 0.0, 1.0])),
        max_size=60,
    ),
)
def test_a_builder_that_takes_a_batch_up_goes_on_as_the_one_before_would(
    full_by: str, script: list[tuple[str, str | float]]
) -> None:
    """What was taken is known by its batch, all else is told again."""
    batch = builder(full_by, max_aborts_per_task=1)
    known: dict[str, EpisodeRecord] = {}
    for now, (group, what) in enumerate(script):
        running = [r for r in known.values() if r.group == group and r.state == "open"]
        if what == "open":
            if batch.may_begin(group):
                record = replace(episode(group), created_at=now)
                known[record.episode_id] = record
                batch.opened(record)
        elif running:
            if isinstance(what, float):
                over = replace(running[0], state="ended", reward=what, finished_at=now)
                batch.ended(over)
            else:
                over = aborted(replace(running[0], finished_at=now), final=what == "give up")
                batch.aborted(over)
            known[over.episode_id] = over
        if batch.is_full():
            taken = batch.take()
            assert all(known.pop(i).state == "ended" for i in taken.ended)
            assert all(known.pop(i).state == "aborted" for i in taken.aborted)
    again = builder(full_by, max_aborts_per_task=1)
    again.restore(known.values())
    assert again.progress() == replace_quarantined(batch)
    assert again.is_full() == batch.is_full()
    assert again.decided == batch.decided
    assert sorted(again.lacking()) == sorted(batch.lacking())
    for group in "abc":
        assert again.may_begin(group) == batch.may_begin(group)
    assert sorted(again.take().ended) == sorted(batch.take().ended)


def replace_quarantined(batch: BatchBuilder) -> BatchProgress:
    """Its progress, but for what is known of tasks over all batches."""
    return batch.progress().model_copy(update={"quarantined": 0})


def test_what_is_taken_up_says_nothing_of_a_task_over_all_batches() -> None:
    """It was said when it happened."""
    batch = builder(max_aborts_per_task=1)
    records = [start(batch, "a"), start(batch, "a")]
    for record in records:
        fail(batch, record)
    batch.restore([replace(episode("a"), state="ended", reward=1.0)])
    assert batch.refuses("c", "a") is not None


def test_a_client_that_only_ever_begins_does_not_make_a_batch_grow() -> None:
    batch = builder(tasks=1)
    begun = 0
    for _ in range(10):
        if batch.may_begin("a"):
            begun += 1
            batch.silent(start(batch, "a"))
    assert begun == 4
    assert batch.progress().open_episodes == 2


def test_a_task_with_a_single_success_leaves_its_place_to_others() -> None:
    batch = builder(tasks=1)
    finish(batch, start(batch, "a"), 1.0)
    fail(batch, start(batch, "a"), final=True)
    assert not batch.is_full()
    for record in [start(batch, "b"), start(batch, "b")]:
        finish(batch, record, 1.0)
    assert len(batch.take().ended) == 3


def test_the_place_of_a_silent_client_is_given_away_and_its_episode_still_counts() -> None:
    batch = builder(tasks=1)
    lost, other = start(batch, "a"), start(batch, "a")
    batch.silent(lost)
    instead = start(batch, "a")
    batch.heard(lost)
    batch.silent(lost)
    for record in (other, instead):
        finish(batch, record, 1.0)
    assert batch.is_full()
    assert lost.episode_id not in batch.take().ended
    finish(batch, lost, 1.0)
    assert batch.take().ended == [lost.episode_id]


def test_an_exact_batch_waits_for_silent_clients() -> None:
    batch = BatchBuilder(BatchConfig(tasks=1, episodes_per_task=2), draws=Draws(seed=1))
    first, second = start(batch, "a"), start(batch, "a")
    batch.silent(first)
    finish(batch, second, 1.0)
    assert not batch.is_full()
    assert not batch.may_begin("a", "")
    batch.heard(first)
    finish(batch, first, 1.0)
    assert sorted(batch.take().ended) == sorted([first.episode_id, second.episode_id])


def test_open_episodes_are_carried_over_to_the_next_batch() -> None:
    batch = builder("episodes", tasks=1)
    late = episode("late")
    batch.opened(late)
    for record in (episode("a"), episode("b")):
        batch.opened(record)
        finish(batch, record, 1.0)
    assert late.episode_id not in batch.take().ended
    assert batch.progress().open_episodes == 1
    finish(batch, late, 1.0)
    assert batch.progress().ready == 1


@given(
    st.sampled_from(["tasks", "episodes", "differing_tasks"]),
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([None, 0.0, 1.0])), max_size=80),
)
def test_every_ended_episode_is_taken_exactly_once(
    full_by: str, script: list[tuple[str, float | None]]
) -> None:
    batch = builder(full_by)
    ended: list[str] = []
    taken: list[str] = []
    for group, reward in script:
        if not batch.may_begin(group):
            continue
        record = episode(group)
        batch.opened(record)
        if reward is None:
            batch.aborted(replace(record, state="aborted"))
        else:
            finish(batch, record, reward)
            ended.append(record.episode_id)
        if batch.is_full():
            taken += batch.take().ended
    taken += batch.take().ended
    assert sorted(taken) == sorted(ended)


@dataclass
class Recount:
    """What `BatchBuilder` keeps sums of, counted anew each time it is asked."""

    full_by: str
    tasks: int = 2
    size: int = 2
    aborts_allowed: int = 1
    open: list[EpisodeRecord] = field(default_factory=list)
    ended: list[EpisodeRecord] = field(default_factory=list)
    silent: list[EpisodeRecord] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def rewards(self, group: str) -> list[float | None]:
        return [r.reward for r in self.ended if r.group == group]

    def running(self, group: str) -> int:
        return sum(r.group == group for r in self.open)

    def room(self, group: str) -> int:
        if self.aborts.count(group) > self.aborts_allowed:
            return 0
        taken = self.running(group) + len(self.rewards(group)) + self.given_up.count(group)
        return max(0, self.size - taken)

    def complete(self, group: str) -> bool:
        if self.aborts.count(group) > self.aborts_allowed:
            return not self.running(group)
        return len(self.rewards(group)) + self.given_up.count(group) >= self.size

    def spent(self, group: str) -> bool:
        failed = self.aborts.count(group) > self.aborts_allowed or group in self.given_up
        worth = len(self.rewards(group)) >= 2
        return failed and not self.running(group) and self.complete(group) and not worth

    def forget(self, group: str) -> None:
        self.aborts = [g for g in self.aborts if g != group]
        self.given_up = [g for g in self.given_up if g != group]

    def dull(self, group: str) -> bool:
        return self.full_by == "differing_tasks" and len(set(self.rewards(group))) < 2

    def ready(self, group: str) -> bool:
        return self.complete(group) and len(self.rewards(group)) >= 2 and not self.dull(group)

    def may_begin(self, group: str) -> bool:
        if self.full_by == "episodes":
            return len(self.open) + len(self.ended) < self.tasks * self.size
        if not (self.room(group) or self.spent(group)):
            return False
        if self.running(group) and not self.complete(group):
            return True
        active = sum(
            self.ready(g) or (self.running(g) > 0 and not self.complete(g)) for g in "abcde"
        )
        return active < self.tasks

    def is_full(self) -> bool:
        if self.full_by == "episodes":
            return len(self.ended) >= self.tasks * self.size
        return sum(map(self.ready, "abcde")) >= self.tasks


@given(
    st.sampled_from(["tasks", "episodes", "differing_tasks"]),
    st.lists(
        st.tuples(
            st.sampled_from("abcde"),
            st.sampled_from(["open", "open", "abort", "give up", "silent", "heard", 0.0, 1.0]),
        ),
        max_size=80,
    ),
)
def test_the_sums_are_those_of_counting_again(
    full_by: str, script: list[tuple[str, str | float]]
) -> None:
    batch, recount = builder(full_by, max_aborts_per_task=1), Recount(full_by)
    for group, what in script:
        running = next((r for r in recount.open if r.group == group), None)
        if what == "open" and batch.may_begin(group):
            if recount.spent(group):
                recount.forget(group)
            recount.open.append(episode(group))
            batch.opened(recount.open[-1])
        elif what == "heard":
            if heard := next((r for r in recount.silent if r.group == group), None):
                recount.silent.remove(heard)
                recount.open.append(heard)
                batch.heard(heard)
        elif what != "open" and running is not None:
            recount.open.remove(running)
            if isinstance(what, float):
                recount.ended.append(replace(running, state="ended", reward=what))
                batch.ended(recount.ended[-1])
            elif what == "silent" and sum(r.group == group for r in recount.silent) >= 2:
                recount.open.append(running)
                batch.silent(running)
            elif what == "silent":
                recount.silent.append(running)
                batch.silent(running)
            else:
                recount.aborts.append(group)
                recount.given_up += [group] * (what == "give up")
                fail(batch, running, final=what == "give up")
        batch.wait_less()
        batch.wait_less()
        assert [batch.may_begin(g) for g in "abcde"] == [recount.may_begin(g) for g in "abcde"]
        assert batch.is_full() == recount.is_full()
        assert batch.progress().open_episodes == len(recount.open)
        if batch.is_full():
            batch.take()
            recount = Recount(full_by, open=recount.open, silent=recount.silent)


@pytest.mark.parametrize("full_by", ["tasks", "differing_tasks"])
def test_a_single_rollout_per_task_is_refused(full_by: str) -> None:
    with pytest.raises(ValueError, match="episodes_per_task must be at least 2"):
        RunConfig.model_validate(
            {"model": {"path": "m"}, "batch": {"full_by": full_by, "episodes_per_task": 1}}
        )
