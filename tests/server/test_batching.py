"""The bookkeeping that decides which episodes start and when a batch is full."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig, RunConfig
from ajet_core.server.batching import BatchBuilder

_ids = itertools.count()


def episode(group: str) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=f"e{next(_ids)}",
        key_hash="",
        task_id=group,
        group=group,
        kind="train",
        tag="",
        client_id="c",
        claim_version=0,
        lease_seconds=60,
        created_at=0,
    )


def builder(full_by: str = "tasks", **changes: int) -> BatchBuilder:
    sizes = {"tasks": 2, "episodes_per_task": 2, **changes}
    return BatchBuilder(BatchConfig.model_validate({"full_by": full_by, **sizes}))


def start(batch: BatchBuilder, group: str) -> EpisodeRecord:
    assert batch.admission(group) == "now"
    found = episode(group)
    batch.opened(found)
    return found


def finish(batch: BatchBuilder, record: EpisodeRecord, reward: float) -> None:
    batch.ended(replace(record, state="ended", reward=reward))


def test_a_task_gets_no_more_places_than_episodes_per_task() -> None:
    batch = builder()
    start(batch, "a"), start(batch, "a")
    assert batch.admission("a") == "later"
    assert batch.admission("b") == "now"


def test_a_batch_has_no_place_for_one_task_too_many() -> None:
    batch = builder()
    start(batch, "a"), start(batch, "b")
    assert batch.admission("c") == "later"


def test_an_aborted_episode_frees_its_place() -> None:
    batch = builder()
    first = start(batch, "a")
    start(batch, "a")
    batch.aborted(replace(first, state="aborted"))
    assert batch.admission("a") == "now"


def test_a_task_that_nobody_works_on_any_more_gives_its_place_to_others() -> None:
    """A client that died with half-rolled tasks must not keep the batch from ever being full."""
    batch = builder()
    for group in "ab":
        finish(batch, start(batch, group), 1.0)
    for record in [start(batch, g) for g in "ccdd"]:
        finish(batch, record, 1.0)
    assert batch.is_full()
    assert len(batch.take()) == 6


def test_an_incomplete_task_takes_its_place_again_when_it_goes_on() -> None:
    batch = builder()
    finish(batch, start(batch, "a"), 1.0)
    again = start(batch, "a")
    start(batch, "b")
    assert batch.admission("c") == "later"
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
    assert sorted(batch.take()) == sorted(r.episode_id for r in running)
    assert not batch.is_full()
    assert batch.admission("a") == "now"


def test_full_by_episodes_does_not_care_for_tasks() -> None:
    batch = builder("episodes")
    running = [start(batch, g) for g in "aaab"]
    assert batch.admission("z") == "later"
    for record in running:
        finish(batch, record, 0.0)
    assert batch.is_full()


def test_equal_rewards_give_their_place_to_another_task() -> None:
    batch = builder("differing_tasks")
    dull = [start(batch, "a"), start(batch, "a")]
    other = [start(batch, "b"), start(batch, "b")]
    for record in dull:
        finish(batch, record, 1.0)
    assert batch.admission("c") == "now"
    third = [start(batch, "c"), start(batch, "c")]
    for record, reward in zip(other + third, (0.0, 1.0, 0.0, 1.0), strict=True):
        finish(batch, record, reward)
    assert batch.is_full()
    # What was rolled out is consumed too: it has no gradient, but its rewards belong to the mean.
    assert len(batch.take()) == 6


@pytest.mark.parametrize("kind", ["call_rewards", "agent_rewards"])
def test_a_task_differs_by_the_rewards_of_its_calls_and_agents_too(kind: str) -> None:
    batch = builder("differing_tasks", tasks=1)
    records = [start(batch, "a"), start(batch, "a")]
    for record, value in zip(records, (0.0, 1.0), strict=True):
        assert not batch.is_full()
        batch.ended(replace(record, state="ended", reward=1.0, **{kind: {"x": value}}))
    assert batch.is_full()


def test_a_task_that_keeps_failing_is_set_aside_and_replaced() -> None:
    batch = builder(max_aborts_per_task=2)
    for n in range(3):
        record = start(batch, "a")
        assert batch.aborted(replace(record, state="aborted")) is (n == 2)
    assert batch.admission("a") == "set_aside"
    for record in [start(batch, g) for g in "bbcc"]:
        finish(batch, record, 1.0)
    assert batch.is_full()
    assert batch.progress().set_aside == 1
    batch.take()
    assert batch.admission("a") == "now"


def test_open_episodes_are_carried_over_to_the_next_batch() -> None:
    batch = builder("episodes", tasks=1)
    late = episode("late")
    batch.opened(late)
    for record in (episode("a"), episode("b")):
        batch.opened(record)
        finish(batch, record, 1.0)
    assert late.episode_id not in batch.take()
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
        if batch.admission(group) != "now":
            continue
        record = episode(group)
        batch.opened(record)
        if reward is None:
            batch.aborted(replace(record, state="aborted"))
        else:
            finish(batch, record, reward)
            ended.append(record.episode_id)
        if batch.is_full():
            taken += batch.take()
    taken += batch.take()
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
    aborted: list[EpisodeRecord] = field(default_factory=list)

    def rewards(self, group: str) -> list[float | None]:
        return [r.reward for r in self.ended if r.group == group]

    def running(self, group: str) -> int:
        return sum(r.group == group for r in self.open)

    def set_aside(self, group: str) -> bool:
        return sum(r.group == group for r in self.aborted) > self.aborts_allowed

    def ready(self, group: str) -> bool:
        rewards = self.rewards(group)
        dull = self.full_by == "differing_tasks" and len(set(rewards)) < 2
        return len(rewards) >= self.size and not dull and not self.set_aside(group)

    def holds_place(self, group: str) -> bool:
        return bool(self.running(group)) or len(self.rewards(group)) >= self.size

    def admission(self, group: str) -> str:
        if self.full_by == "episodes":
            return "now" if len(self.open) + len(self.ended) < self.tasks * self.size else "later"
        if self.set_aside(group):
            return "set_aside"
        if self.holds_place(group):
            taken = self.running(group) + len(self.rewards(group))
            return "now" if taken < self.size else "later"
        active = sum(
            self.ready(g) or (self.running(g) > 0 and len(self.rewards(g)) < self.size)
            for g in "abcde"
            if not self.set_aside(g)
        )
        return "now" if active < self.tasks else "later"

    def is_full(self) -> bool:
        if self.full_by == "episodes":
            return len(self.ended) >= self.tasks * self.size
        return sum(map(self.ready, "abcde")) >= self.tasks


@given(
    st.sampled_from(["tasks", "episodes", "differing_tasks"]),
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["open", "abort", 0.0, 1.0])),
        max_size=80,
    ),
)
def test_the_sums_are_those_of_counting_again(
    full_by: str, script: list[tuple[str, str | float]]
) -> None:
    batch, recount = builder(full_by, max_aborts_per_task=1), Recount(full_by)
    for group, what in script:
        running = next((r for r in recount.open if r.group == group), None)
        if what == "open" and batch.admission(group) == "now":
            recount.open.append(episode(group))
            batch.opened(recount.open[-1])
        elif what != "open" and running is not None:
            recount.open.remove(running)
            if isinstance(what, float):
                recount.ended.append(replace(running, state="ended", reward=what))
                batch.ended(recount.ended[-1])
            else:
                recount.aborted.append(running)
                batch.aborted(replace(running, state="aborted"))
        assert [batch.admission(g) for g in "abcde"] == [recount.admission(g) for g in "abcde"]
        assert batch.is_full() == recount.is_full()
        assert batch.progress().open_episodes == len(recount.open)
        if batch.is_full():
            batch.take()
            recount = Recount(full_by, open=recount.open)


@pytest.mark.parametrize("full_by", ["tasks", "differing_tasks"])
def test_a_single_rollout_per_task_is_refused(full_by: str) -> None:
    with pytest.raises(ValueError, match="episodes_per_task must be at least 2"):
        RunConfig.model_validate(
            {"model": {"path": "m"}, "batch": {"full_by": full_by, "episodes_per_task": 1}}
        )
