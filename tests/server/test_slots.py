"""Which tags a batch is made of, and how far rollouts may be ahead of it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig, MixtureConfig, RolloutConfig
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.slots import ANY, Slots
from ajet_testing.suites.samples import make_episode
from tests.support.tiers import examples

ASYNC = RolloutConfig(mode="async", max_staleness=2, max_mean_staleness=None)
HALVES = {"a": 0.5, "b": 0.5}

_ids = itertools.count()


def batches(
    tasks: int = 4,
    size: int = 2,
    *,
    rollout: RolloutConfig | None = None,
    mixture: dict[str, float] | None = None,
    full_by: str = "tasks",
    **more: Any,
) -> BatchBuilder:
    config = BatchConfig.model_validate(
        {"tasks": tasks, "episodes_per_task": size, "full_by": full_by}
    )
    mixed = MixtureConfig(ratios=mixture) if mixture else None
    return BatchBuilder(config, slots=Slots(config, rollout or RolloutConfig(), mixed, **more))


def start(batch: BatchBuilder, group: str, tag: str = "") -> EpisodeRecord:
    assert batch.may_begin(group, tag)
    episode = replace(make_episode(f"e{next(_ids)}", group=group), tag=tag)
    batch.opened(episode)
    return episode


def end(batch: BatchBuilder, *episodes: EpisodeRecord) -> None:
    for number, episode in enumerate(episodes):
        batch.ended(replace(episode, state="ended", reward=float(number)))


def roll_out(batch: BatchBuilder, group: str, tag: str = "") -> list[EpisodeRecord]:
    made = [start(batch, group, tag) for _ in range(batch.episodes_per_task)]
    end(batch, *made)
    return made


def ids(*groups: list[EpisodeRecord]) -> set[str]:
    return {episode.episode_id for group in groups for episode in group}


def test_a_tag_has_its_places_and_no_more() -> None:
    batch = batches(mixture={"a": 0.75, "b": 0.25})
    for name in "xyz":
        roll_out(batch, name, "a")
    assert (batch.may_begin("w", "a"), batch.may_begin("v", "b")) == (False, True)
    # However fast the others are, the batch waits for the slowest.
    assert not batch.is_full()
    roll_out(batch, "v", "b")
    assert batch.is_full()


def test_a_tag_that_nobody_rolls_out_gives_its_places_to_the_others_for_this_batch() -> None:
    batch = batches(mixture=HALVES)
    mine = [roll_out(batch, name, "a") for name in "xy"]
    mine.append(roll_out(batch, "u", "b"))
    batch.block({"b"})
    # What there is of the blocked tag stays part of the batch.
    assert batch.slots.quotas == {"a": 3, "b": 1}
    assert not batch.may_begin("v", "b")
    mine.append(roll_out(batch, "z", "a"))
    assert batch.is_full()
    assert set(batch.take().ended) == ids(*mine)
    assert batch.slots.quotas == {"a": 2, "b": 2}


def test_whoever_comes_first_is_welcome_when_all_tags_are_blocked() -> None:
    batch = batches(mixture=HALVES)
    batch.block({"a", "b"})
    assert batch.slots.quotas == {"a": 2, "b": 2}


def test_a_change_holds_from_the_next_batch_on() -> None:
    batch = batches(mixture=HALVES)
    batch.slots.change(MixtureConfig(ratios={"a": 0.25, "b": 0.5, "c": 0.25}))
    assert batch.slots.quotas == {"a": 2, "b": 2}
    assert batch.slots.refusal("c") is None
    for name, tag in zip("wxyz", "aabb", strict=True):
        roll_out(batch, name, tag)
    batch.take()
    assert batch.slots.quotas == {"a": 1, "b": 2, "c": 1}


def test_episodes_of_a_tag_that_the_mixture_never_has_are_refused() -> None:
    batch = batches(mixture=HALVES)
    assert "no tag 'c', only 'a', 'b'" in (batch.slots.refusal("c") or "")
    assert batches().slots.refusal("c") is None


def test_what_is_ready_besides_is_part_of_the_next_batch() -> None:
    batch = batches(tasks=1, rollout=ASYNC)
    first, second = roll_out(batch, "x"), roll_out(batch, "y")
    assert set(batch.take().ended) == ids(first)
    assert batch.is_full()
    assert set(batch.take().ended) == ids(second)
    assert not batch.is_full()


def test_rollouts_are_ahead_by_as_many_batches_as_their_tokens_may_be_old() -> None:
    batch = batches(tasks=2, rollout=ASYNC)
    for name in "abcdef":
        roll_out(batch, name)
    assert not batch.may_begin("g")
    batch.take()
    # It is trained now, with the weights that sampled the others.
    assert not batch.may_begin("g")
    batch.trained()
    start(batch, "g")
    start(batch, "h")
    assert not batch.may_begin("i")


@pytest.mark.parametrize(
    ("mean", "ahead"), [(None, 8), (1.0, 4), (1.5, 6), (0.5, 2), (0.01, 1), (9.0, 8)]
)
def test_rollouts_are_no_further_ahead_than_a_batch_may_be_old_on_average(
    mean: float | None, ahead: int
) -> None:
    rollout = RolloutConfig(mode="async", max_staleness=2, max_mean_staleness=mean)
    batch = batches(tasks=4, rollout=rollout)
    for name in itertools.islice(map(str, itertools.count()), 4 + ahead):
        roll_out(batch, name)
    assert not batch.may_begin("one more")
    batch.take()
    # These would be sampled by the weights that are being trained.
    assert not batch.may_begin("one more")
    batch.trained()
    assert batch.may_begin("one more")


def test_a_tag_has_its_places_while_the_last_batch_that_is_only_of_it_is_trained() -> None:
    config = BatchConfig(tasks=2, episodes_per_task=2)
    mixture = MixtureConfig.model_validate(
        {"ratios": {"a": 1}, "schedule": [{"from_step": 3, "ratios": {"b": 1}}]}
    )
    slots = Slots(config, RolloutConfig(mode="async", max_staleness=1), mixture)
    assert slots.limits == {"a": 4}
    slots.next()
    assert slots.limits == {"a": 2}
    slots.trained()
    assert slots.limits == {"a": 2, "b": 2}


def test_a_slow_task_does_not_hold_up_an_asynchronous_batch() -> None:
    batch = batches(tasks=1, rollout=ASYNC)
    slow = start(batch, "slow")
    fast = roll_out(batch, "fast")
    assert set(batch.take().ended) == ids(fast)
    end(batch, slow, start(batch, "slow"))
    assert batch.is_full()


def test_half_a_task_that_nobody_goes_on_with_is_taken_along_in_the_end() -> None:
    batch = batches(tasks=1, rollout=ASYNC)
    (half,) = [start(batch, "half")]
    end(batch, half)
    batch.wait_less()
    batch.wait_less()
    assert half.episode_id not in (roll_out(batch, "x"), batch.take().ended)[1]
    # Its client may only have been between two episodes; now a whole batch has passed.
    roll_out(batch, "y")
    assert half.episode_id in batch.take().ended


def test_spare_tasks_may_be_rolled_out_and_belong_to_the_batch_if_they_end_in_time() -> None:
    batch = batches(tasks=2, rollout=RolloutConfig(spare_tasks=1))
    done = [roll_out(batch, "x"), roll_out(batch, "y")]
    late = start(batch, "z")
    assert batch.is_full()
    batch.drain()
    assert not batch.may_begin("z")
    assert not batch.decided
    assert set(batch.take().ended) == ids(*done)
    assert batch.may_begin("z")
    end(batch, late)


def test_a_full_batch_that_is_drained_is_filled_again_if_tasks_get_another_chance() -> None:
    batch = batches(tasks=1, size=3, rollout=RolloutConfig(spare_tasks=1))
    end(batch, start(batch, "x"), start(batch, "x"))
    while not batch.is_full():
        batch.aborted(replace(start(batch, "x"), state="aborted", cause="error"))
    batch.drain()
    batch.readmit()
    assert not batch.is_full()
    assert batch.may_begin("x")


def test_what_a_mixture_begins_with_takes_any_tag_until_the_next_batch() -> None:
    batch = batches(tasks=1)
    batch.slots.change(MixtureConfig(ratios=HALVES))
    assert batch.slots.refusal("c") is None
    roll_out(batch, "x", "c")
    batch.take()
    assert "no tag 'c'" in (batch.slots.refusal("c") or "")


def test_what_ended_of_a_tag_that_is_removed_is_kept_for_its_return_and_hinders_nobody() -> None:
    batch = batches(tasks=2, mixture=HALVES, rollout=ASYNC)
    whole, later = roll_out(batch, "b1", "b"), roll_out(batch, "b2", "b")
    half = start(batch, "b3", "b")
    batch.slots.change(MixtureConfig(ratios={"a": 1}))
    mine = roll_out(batch, "a1", "a")
    assert set(batch.take().ended) == ids(mine, whole)
    end(batch, half)
    assert batch.lacking() == []
    for number in range(3):
        both = [roll_out(batch, f"{number}-{n}", "a") for n in range(2)]
        assert set(batch.take().ended) == ids(*both)
    batch.slots.change(MixtureConfig(ratios={"b": 1}))
    for n in range(2):
        roll_out(batch, f"last-{n}", "a")
    batch.take()
    end(batch, start(batch, "b3", "b"))
    assert batch.is_full()
    assert {*ids(later), half.episode_id} < set(batch.take().ended)


@pytest.mark.parametrize("rollout", [RolloutConfig(), RolloutConfig(spare_tasks=2), ASYNC])
def test_of_a_tag_that_is_removed_as_much_begins_as_the_batch_needs(rollout: RolloutConfig) -> None:
    batch = batches(tasks=2, mixture=HALVES, rollout=rollout)
    batch.change_mixture(MixtureConfig(ratios={"a": 1}))
    mine = [roll_out(batch, "a1", "a")]
    assert not batch.is_full()
    assert batch.slots.refusal("b") is None
    mine.append(roll_out(batch, "b1", "b"))
    assert batch.is_full()
    # It is not refused yet: the batch would need it if it were not full.
    assert batch.slots.refusal("b") is None
    assert not batch.may_begin("b2", "b")
    assert set(batch.take().ended) == ids(*mine)
    assert "no tag 'b', only 'a'" in (batch.slots.refusal("b") or "")


def test_a_tag_that_is_removed_and_has_no_places_in_the_batch_is_refused_at_once() -> None:
    batch = batches(tasks=1, mixture=HALVES)
    assert batch.slots.quotas == {"a": 1, "b": 0}
    batch.change_mixture(MixtureConfig(ratios={"c": 1}))
    assert batch.slots.refusal("a") is None
    assert "no tag 'b', only 'c'" in (batch.slots.refusal("b") or "")


def test_by_episodes_a_batch_takes_those_that_came_first() -> None:
    batch = batches(tasks=2, size=2, rollout=ASYNC, full_by="episodes")
    opened = [start(batch, f"g{i % 3}") for i in range(12)]
    assert not batch.may_begin("g0")
    end(batch, *opened[:6])
    taken = batch.take().ended
    assert len(taken) == 4
    assert not batch.is_full()
    end(batch, *opened[6:8])
    assert set(batch.take().ended) | set(taken) == ids(opened[:8])


def test_a_change_holds_at_once_if_nobody_fills_the_batch() -> None:
    batch = batches(tasks=2, mixture={"a": 1})
    for name in "xy":
        roll_out(batch, name, "a")
    batch.take()
    batch.change_mixture(MixtureConfig(ratios=HALVES))
    assert batch.slots.quotas == {"a": 1, "b": 1}
    batch.slots.settle()
    batch.change_mixture(MixtureConfig(ratios={"b": 1}))
    assert batch.slots.quotas == {"a": 1, "b": 1}


def test_whoever_waits_for_a_later_batch_gets_what_is_left_of_one_that_nobody_fills() -> None:
    batch = batches(tasks=4, mixture=HALVES)
    mine = [roll_out(batch, "a1", "a"), roll_out(batch, "b1", "b"), roll_out(batch, "b2", "b")]
    assert not batch.hand_over({"c"})
    batch.change_mixture(MixtureConfig(ratios={"b": 0.5, "c": 0.5}))
    assert not batch.hand_over({"d"})
    assert batch.slots.quotas == {"a": 2, "b": 2}
    assert batch.hand_over({"c"})
    # What is ready of a is kept, and what is of b counts for its new slots.
    assert batch.slots.quotas == {"a": 1, "b": 2, "c": 1}
    assert "no tag 'a'" in (batch.slots.refusal("a") or "")
    assert not batch.may_begin("a2", "a")
    mine.append(roll_out(batch, "c1", "c"))
    assert set(batch.take().ended) == ids(*mine)
    assert batch.slots.quotas == {"b": 2, "c": 2}


def test_a_batch_that_nobody_fills_has_the_ratios_of_the_stage_that_somebody_waits_for() -> None:
    config = BatchConfig(tasks=2, episodes_per_task=2)
    stages = [{"from_step": 5, "ratios": {"b": 1}}, {"from_step": 9, "ratios": {"c": 1}}]
    mixture = MixtureConfig.model_validate({"ratios": {"a": 1}, "schedule": stages})
    slots = Slots(config, RolloutConfig(mode="async", max_staleness=1), mixture)
    assert slots.hand_over({"c"}, {"a": 1})
    assert slots.quotas == {"a": 1, "c": 1}
    assert slots.ratios == {"c": 1}
    assert slots.limits == {"a": 1 + 2, "c": 1}
    slots.next()
    assert slots.quotas == {"a": 2}


def test_credit_goes_on_in_the_next_process() -> None:
    first = batches(tasks=1, mixture=HALVES)
    assert first.slots.quotas == {"a": 1, "b": 0}
    roll_out(first, "x", "a")
    first.take()
    again = batches(tasks=1, mixture=HALVES, step=2, credit=first.slots.credit)
    assert again.slots.quotas == first.slots.quotas == {"a": 0, "b": 1}


def test_a_schedule_changes_the_ratios_at_its_step() -> None:
    config = BatchConfig(tasks=2, episodes_per_task=2)
    mixture = MixtureConfig.model_validate(
        {"ratios": {"a": 1}, "schedule": [{"from_step": 2, "ratios": {"b": 1}}]}
    )
    slots = Slots(config, RolloutConfig(), mixture)
    assert slots.quotas == {"a": 2}
    slots.next()
    assert slots.quotas == {"b": 2}
    # The batch of the first step was refused: its step is given again.
    slots.begin(1)
    assert slots.quotas == {"a": 2}
    assert Slots(config, RolloutConfig(), None).quotas == {ANY: 2}


@st.composite
def runs(draw: st.DrawFn) -> tuple[BatchBuilder, dict[str, float], st.DataObject]:
    weights = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    ratios = {tag: w / sum(weights) for tag, w in zip("abc", weights, strict=False)}
    rollout = draw(st.sampled_from([RolloutConfig(), RolloutConfig(spare_tasks=2), ASYNC]))
    return (
        batches(draw(st.integers(1, 6)), 2, rollout=rollout, mixture=ratios),
        ratios,
        draw(st.data()),
    )


# Its time is that of the machine, and an example has many steps.
@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30))
@given(runs())
def test_every_batch_has_the_ratios_whatever_the_clients_do(
    run: tuple[BatchBuilder, dict[str, float], st.DataObject],
) -> None:
    batch, ratios, data = run
    opened: dict[str, EpisodeRecord] = {}
    ended: dict[str, str] = {}
    names, training = itertools.count(), False
    for _ in range(200):
        tag = data.draw(st.sampled_from(sorted(ratios)))
        what = data.draw(st.sampled_from(["begin", "begin", "end", "end", "abort", "train"]))
        if what == "begin" and batch.takes(tag):
            group = f"{tag}{next(names)}"
            for _ in range(2):
                episode = start(batch, group, tag)
                opened[episode.episode_id] = episode
        elif what in {"end", "abort"} and opened:
            episode = opened.pop(data.draw(st.sampled_from(list(opened))))
            if what == "end":
                end(batch, episode)
                ended[episode.episode_id] = episode.group
            else:
                batch.aborted(replace(episode, state="aborted", cause="error"))
        elif training:
            batch.trained()
            training = False
        if not training and batch.is_full():
            needed, quotas = batch.slots.needed, batch.slots.quotas
            taken = Counter(ended.pop(e) for e in batch.take().ended)
            whole = Counter(group[0] for group, size in taken.items() if size == 2)
            assert dict(whole) == {tag: quota for tag, quota in quotas.items() if quota}
            assert sum(quotas.values()) == needed
            assert all(abs(quotas[tag] - ratio * needed) < 1 for tag, ratio in ratios.items())
            training = True


@st.composite
def swarms(draw: st.DrawFn) -> tuple[BatchBuilder, list[str], st.DataObject]:
    """A builder of any kind, and the tags of its clients."""
    tags = draw(st.sampled_from([[""], ["a", "b"]]))
    rollout = draw(
        st.sampled_from(
            [
                RolloutConfig(),
                RolloutConfig(spare_tasks=1),
                RolloutConfig(mode="async", max_staleness=1),
                RolloutConfig(mode="async", max_staleness=3, max_mean_staleness=None),
                RolloutConfig(mode="async", max_staleness=3, max_mean_staleness=0.4),
            ]
        )
    )
    batch = batches(
        draw(st.integers(1, 3)),
        draw(st.integers(2, 3)),
        rollout=rollout,
        mixture={"a": 0.7, "b": 0.3} if len(tags) > 1 else None,
        full_by=draw(st.sampled_from(["tasks", "episodes", "differing_tasks"])),
    )
    return batch, tags, draw(st.data())


@pytest.mark.slow
@settings(deadline=None)
@given(swarms())
def test_whatever_clients_do_there_is_a_way_to_the_next_batch(
    swarm: tuple[BatchBuilder, list[str], st.DataObject],
) -> None:
    """Whatever clients do, a batch that is not full has free slots or open episodes."""
    batch, tags, data = swarm
    opened: list[EpisodeRecord] = []
    silent: list[EpisodeRecord] = []
    names = itertools.count()
    training = False

    def some(episodes: list[EpisodeRecord]) -> EpisodeRecord:
        return episodes.pop(data.draw(st.integers(0, len(episodes) - 1)))

    for _ in range(80):
        what = data.draw(
            st.sampled_from(
                ["new", "new", "more", "end", "end", "abort", "silent", "heard", "train"]
            )
        )
        tag = data.draw(st.sampled_from(tags))
        if what in {"new", "more"}:
            count = next(names) if what == "new" else data.draw(st.integers(0, 9))
            group = f"{tag}{count}"
            if batch.may_begin(group, tag):
                opened.append(start(batch, group, tag))
        elif what in {"end", "abort"} and opened:
            episode = some(opened)
            if what == "end":
                reward = float(data.draw(st.integers(0, 1)))
                batch.ended(replace(episode, state="ended", reward=reward))
            else:
                final = data.draw(st.booleans())
                batch.aborted(replace(episode, state="aborted", cause="error", final=final))
        elif what == "silent" and opened:
            episode = some(opened)
            batch.silent(episode)
            silent.append(episode)
        elif what == "heard" and silent:
            episode = some(silent)
            batch.heard(episode)
            opened.append(episode)
        elif what == "train" and training:
            batch.trained()
            training = False
        if batch.is_full() and not training:
            batch.take()
            training = True
        batch.wait_less()
        batch.wait_less()
        if not (training or opened or len(silent) > batch.episodes_per_task):
            assert any(batch.takes(tag) for tag in tags)


def one_silent_too_many(batch: BatchBuilder) -> tuple[EpisodeRecord, EpisodeRecord]:
    """Make three episodes silent; return the first, and the last, which keeps its slot."""
    first, second = start(batch, "x"), start(batch, "x")
    batch.silent(first)
    batch.silent(second)
    third = start(batch, "x")
    batch.silent(third)
    return first, third


def test_a_silent_episode_gives_up_its_slot_when_another_of_its_task_is_heard_again() -> None:
    batch = batches(tasks=1)
    first, _ = one_silent_too_many(batch)
    assert not batch.may_begin("y")
    batch.heard(first)
    end(batch, first)
    assert batch.may_begin("x")
    end(batch, start(batch, "x"))
    assert batch.is_full()


def test_a_silent_episode_that_kept_its_slot_is_heard_again() -> None:
    batch = batches(tasks=1)
    first, third = one_silent_too_many(batch)
    batch.heard(third)
    batch.aborted(replace(first, state="aborted", cause="error"))
    fourth = start(batch, "x")
    assert not batch.may_begin("x")
    end(batch, third, fourth)
    assert batch.is_full()


@st.composite
def asynchronous(draw: st.DrawFn) -> tuple[BatchBuilder, RolloutConfig, list[str], st.DataObject]:
    """A builder whose rollouts go on while a step is trained, and the tags of its clients."""
    bound = draw(st.integers(1, 4))
    mean = draw(st.sampled_from([None, 0.5, 1.0, 1.5, 4.0]))
    rollout = RolloutConfig(mode="async", max_staleness=bound, max_mean_staleness=mean)
    tags = draw(st.sampled_from([[""], ["a", "b"]]))
    batch = batches(
        draw(st.integers(2, 4)),
        draw(st.integers(2, 3)),
        rollout=rollout,
        mixture={"a": 0.7, "b": 0.3} if len(tags) > 1 else None,
        full_by=draw(st.sampled_from(["tasks", "episodes"])),
    )
    return batch, rollout, tags, draw(st.data())


@pytest.mark.nightly
@pytest.mark.slow
@settings(deadline=None)
@given(asynchronous())
def test_whatever_is_slow_no_batch_has_an_episode_that_is_older_than_the_bound(
    run: tuple[BatchBuilder, RolloutConfig, list[str], st.DataObject],
) -> None:
    """Each client rolls out all episodes of a task, in any order, slowly; failures are retried."""
    batch, rollout, tags, data = run
    version, training = 0, False
    opened: list[EpisodeRecord] = []
    born: dict[str, int] = {}
    names = itertools.count()

    def begin(group: str, tag: str) -> None:
        assert batch.may_begin(group, tag)
        made = make_episode(f"e{next(_ids)}", group=group)
        opened.append(replace(made, tag=tag, claim_version=version))
        batch.opened(opened[-1])
        born[opened[-1].episode_id] = version

    for _ in range(150):
        what = data.draw(st.sampled_from(["begin", "end", "end", "fail", "train"]))
        if what == "begin" and batch.takes(tag := data.draw(st.sampled_from(tags))):
            group = f"{tag}{next(names)}"
            for _ in range(batch.episodes_per_task):
                if batch.may_begin(group, tag):
                    begin(group, tag)
        elif what in {"end", "fail"} and opened:
            episode = opened.pop(data.draw(st.integers(0, len(opened) - 1)))
            others = [e for e in opened if e.group == episode.group]
            if what == "end" or not others:
                batch.ended(replace(episode, state="ended", reward=0.0))
            else:
                batch.aborted(replace(episode, state="aborted", cause="error"))
                begin(episode.group, episode.tag)
        elif what == "train" and training:
            version, training = version + 1, False
            batch.trained()
        if batch.is_full() and not training:
            weights = batch.slots.step - 1
            ages = [weights - born.pop(episode) for episode in batch.take().ended]
            assert max(ages) <= rollout.max_staleness
            training = True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_no_episode_is_older_than_the_bound_though_its_tag_has_few_places(seed: int) -> None:
    """Most episodes end soon, some very late; a tag's ratio decides where it has slots."""
    chance = random.Random(seed)
    tags = chance.choice([["a", "b"], ["a", "b", "c"]])
    first, *others = [chance.randint(1, 20) for _ in tags]
    rollout = RolloutConfig(
        mode="async",
        max_staleness=chance.randint(1, 4),
        max_mean_staleness=chance.choice([None, 0.5, 1.0, 1.5, 4.0]),
    )
    batch = batches(
        chance.randint(2, 5),
        chance.randint(2, 3),
        rollout=rollout,
        mixture=dict(zip(tags, (n / (first + sum(others)) for n in (first, *others)), strict=True)),
        full_by=chance.choice(["tasks", "episodes"]),
    )
    slow_share = chance.choice([0.2, 0.5])
    slow: set[str] = set()
    opened: list[EpisodeRecord] = []
    born: dict[str, int] = {}
    version, training = 0, False
    for number in range(600):
        what = chance.choice(["begin", "begin", "end", "end", "end", "train"])
        if what == "begin" and batch.takes(tag := chance.choice(tags)):
            group = f"{tag}{number}"
            for _ in range(batch.episodes_per_task):
                if batch.may_begin(group, tag):
                    made = make_episode(f"e{next(_ids)}", group=group)
                    opened.append(replace(made, tag=tag, claim_version=version))
                    batch.opened(opened[-1])
                    born[made.episode_id] = version
                    if chance.random() < slow_share:
                        slow.add(made.episode_id)
        elif what == "end" and opened:
            quick = [e for e in opened if e.episode_id not in slow]
            episode = chance.choice(quick if quick and chance.random() > 0.02 else opened)
            opened.remove(episode)
            batch.ended(replace(episode, state="ended", reward=0.0))
        elif what == "train" and training:
            version, training = version + 1, False
            batch.trained()
        if batch.is_full() and not training:
            weights = batch.slots.step - 1
            ages = [weights - born[episode] for episode in batch.take().ended]
            assert max(ages) <= rollout.max_staleness
            training = True


@pytest.mark.slow
@settings(deadline=None)
@given(asynchronous())
def test_clients_that_fall_silent_and_come_back_make_no_episode_too_old(
    run: tuple[BatchBuilder, RolloutConfig, list[str], st.DataObject],
) -> None:
    """Others take their slots meanwhile, so more is under way than a batch has slots for."""
    batch, rollout, _, data = run
    assume(batch.slots.mixture is None)
    version, training = 0, False
    opened: list[EpisodeRecord] = []
    silent: list[EpisodeRecord] = []
    born: dict[str, int] = {}
    missed: set[str] = set()
    names = itertools.count()
    for _ in range(150):
        what = data.draw(st.sampled_from(["begin", "end", "end", "silent", "heard", "train"]))
        if what == "begin" and batch.takes(""):
            group = f"g{next(names)}"
            while batch.may_begin(group) and len(opened) < 40:
                made = make_episode(f"e{next(_ids)}", group=group)
                opened.append(replace(made, tag="", claim_version=version))
                batch.opened(opened[-1])
                born[opened[-1].episode_id] = version
        elif what in {"end", "silent"} and opened:
            episode = opened.pop(data.draw(st.integers(0, len(opened) - 1)))
            if what == "end":
                batch.ended(replace(episode, state="ended", reward=0.0))
            else:
                batch.silent(episode)
                silent.append(episode)
        elif what == "heard" and silent:
            episode = silent.pop(data.draw(st.integers(0, len(silent) - 1)))
            batch.heard(episode)
            opened.append(episode)
        elif what == "train" and training:
            version, training = version + 1, False
            batch.trained()
            for episodes in (opened, silent):
                for episode in [*episodes]:
                    if episode.claim_version < version - rollout.max_staleness:
                        episodes.remove(episode)
                        batch.aborted(replace(episode, state="aborted", cause="late"))
        if batch.is_full() and not training:
            missed |= {episode.episode_id for episode in silent}
            weights = batch.slots.step - 1
            ages = {e: weights - born[e] for e in batch.take().ended}
            assert all(age <= rollout.max_staleness or e in missed for e, age in ages.items())
            training = True
