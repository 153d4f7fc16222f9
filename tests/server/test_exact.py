"""Exact runs: ids and seeds that do not depend on the order of requests, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import ConfigError
from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin import EngineSpec, TrainerSpec
from ajet_core.protocol import (
    AbortCause,
    BatchConfig,
    LoraConfig,
    MixtureConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
)
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.draws import Draws
from ajet_server.gateway.call_seeds import DRAW_CHARACTERS, EpisodeSeeds
from ajet_server.run.exactness import check_exact
from tests.support.batches import episode


def draw(episode_id: str) -> str:
    return episode_id[:DRAW_CHARACTERS]


def test_an_episode_that_replaces_an_aborted_one_draws_the_same() -> None:
    draws = Draws(seed=1)
    first = draws.episode_id("task", 0, [])
    second = draws.episode_id("task", 0, [first])
    assert draw(second) != draw(first)
    again = draws.episode_id("task", 0, [second])
    assert draw(again) == draw(first)
    assert again != first


@given(st.permutations(["a", "a", "a", "b", "b"]))
def test_the_order_of_claims_does_not_matter(order: list[str]) -> None:
    def claimed(groups: list[str]) -> set[str]:
        draws = Draws(seed=1)
        ids: dict[str, list[str]] = {"a": [], "b": []}
        for group in groups:
            ids[group].append(draws.episode_id(group, 3, ids[group]))
        return {draw(one) for group in ids.values() for one in group}

    assert claimed(order) == claimed(sorted(order))


@pytest.mark.parametrize("other", [("x", 0, 1), ("task", 1, 1), ("task", 0, 2)])
def test_tasks_versions_and_seeds_draw_otherwise(other: tuple[str, int, int]) -> None:
    group, version, seed = other
    before = Draws(1).episode_id("task", 0, [])
    assert draw(Draws(seed).episode_id(group, version, [])) != draw(before)


def test_evaluation_episodes_of_a_task_draw_differently() -> None:
    draws = Draws(seed=1)
    ids = {draw(draws.evaluation_id("task", 0)) for _ in range(8)}
    assert len(ids) == 8
    assert draw(draws.episode_id("task", 0, [])) not in ids


def test_evaluation_episodes_of_a_restarted_server_draw_anew() -> None:
    draws = Draws(seed=1)
    ids = [draws.evaluation_id("task", 0) for _ in range(4)]
    again = Draws(seed=1)
    again.restore([ids[0], ids[2]])
    assert [draw(again.evaluation_id("task", 0)) for _ in range(2)] == [draw(ids[1]), draw(ids[3])]


def test_a_builder_counts_the_episodes_of_the_present_batch() -> None:
    config = BatchConfig(tasks=1, episodes_per_task=3)
    builder = BatchBuilder(config, draws=Draws(seed=1))
    records = []
    for _ in range(3):
        records.append(replace(episode("a"), episode_id=builder.new_id("a", "train", 0)))
        builder.opened(records[-1])
    ids = [record.episode_id for record in records]
    assert len({draw(one) for one in ids}) == 3
    builder.aborted(replace(records[1], state="aborted"))
    assert draw(builder.new_id("a", "train", 0)) == draw(ids[1])
    assert len(BatchBuilder(config).new_id("a", "train", 0)) == len(ids[0])


def test_a_call_draws_by_episode_prompt_and_how_often_it_was_made() -> None:
    seeds = EpisodeSeeds("0123456789abcdef-first", [])
    one = seeds.take([1, 2, 3], 2)
    other = seeds.take([1, 2], 1)
    repeated = seeds.take([1, 2, 3], 1)
    assert len({*one.seeds, *other.seeds, *repeated.seeds}) == 4
    # The same episode in another run, where the calls came in another order.
    again = EpisodeSeeds("0123456789abcdef-second", [])
    assert again.take([1, 2], 1).seeds == other.seeds
    assert again.take([1, 2, 3], 3).seeds == (*one.seeds, *repeated.seeds)
    # After a restart.
    restored = EpisodeSeeds(
        "0123456789abcdef-first", [("a", [1, 2, 3]), ("b", [1, 2]), ("c", [1, 2, 3])]
    )
    assert restored.take([1, 2, 3], 1).seeds == repeated.seeds


def test_a_call_that_nobody_saw_gives_its_seed_to_the_next() -> None:
    seeds = EpisodeSeeds("episode", [])
    unseen, seen = seeds.take([1], 1), seeds.take([1], 2)
    unseen.give_back(0)
    again = seeds.take([1], 2)
    assert again.seeds[0] == unseen.seeds[0]
    assert len({*again.seeds, *seen.seeds}) == 4


def test_ids_in_an_answer_follow_from_its_seed() -> None:
    first, second = (EpisodeSeeds("episode", []).take([1], 2) for _ in range(2))
    ids = [first.token_hex(choice)(12) for choice in (0, 1)]
    assert ids == [second.token_hex(choice)(12) for choice in (0, 1)]
    assert len(set(ids)) == 2
    assert all(len(one) == 24 for one in ids)


def spec(*, engine: bool = True, trainer: bool = True) -> tuple[EngineSpec, TrainerSpec]:
    return (
        EngineSpec(
            name="fast",
            target="m:E",
            settings="m:S",
            summary="",
            capabilities=EngineCapabilities(("c",), exact=engine),
        ),
        TrainerSpec(
            name="big",
            target="m:T",
            settings="m:S",
            summary="",
            capabilities=TrainerCapabilities(("c",), frozenset(), exact=trainer),
        ),
    )


def config(**changes: object) -> RunConfig:
    return RunConfig.model_validate({"model": ModelConfig(path="m"), "exact": True, **changes})


def test_a_plain_run_can_be_exact() -> None:
    check_exact(config(), *spec(), "in_process")


@pytest.mark.parametrize(
    ("changes", "able", "param", "words"),
    [
        ({}, {"engine": False}, "engine.name", "the engine 'fast' does not support exact runs"),
        ({}, {"trainer": False}, "trainer.name", "the trainer 'big' does not support exact runs"),
        (
            {"rollout": RolloutConfig(mode="async")},
            {},
            "rollout.mode",
            "with rollout.mode async, batches depend on how long episodes take",
        ),
        ({"rollout": RolloutConfig(spare_tasks=1)}, {}, "rollout.spare_tasks", "spare_tasks"),
        ({"rollout": RolloutConfig(late="drop")}, {}, "rollout.late", "late drop"),
        (
            {"batch": BatchConfig(full_by="episodes")},
            {},
            "batch.full_by",
            "full_by episodes",
        ),
        ({"mixture": MixtureConfig(ratios={"a": 0.5, "b": 0.5})}, {}, "mixture", "with mixture"),
        (
            {"model": ModelConfig(path="m", lora=LoraConfig(dropout=0.1))},
            {},
            "model.lora.dropout",
            "dropout makes the trainer's logprobs differ",
        ),
        (
            {"model": ModelConfig(path="m", lora=LoraConfig())},
            {},
            "weight_channel",
            "the engine serves merged adapters",
        ),
    ],
)
def test_what_depends_on_timing_is_refused(
    changes: dict[str, object], able: dict[str, bool], param: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        check_exact(config(**changes), *spec(**able), "safetensors_dir")
    assert refused.value.param == param
    assert "set exact to false" in refused.value.message


def test_a_task_keeps_its_slot_until_it_is_complete() -> None:
    config = BatchConfig(tasks=1, episodes_per_task=2)
    for draws, kept in ((Draws(seed=1), True), (None, False)):
        builder = BatchBuilder(config, draws=draws)
        first = replace(episode("a"), episode_id=builder.new_id("a", "train", 0))
        builder.opened(first)
        builder.ended(replace(first, state="ended", reward=1.0))
        for _ in range(3):
            builder.wait_less()
        assert builder.may_begin("b") is not kept
        assert builder.may_begin("a")


@pytest.mark.parametrize(
    ("cause", "final", "kept"),
    [("error", False, True), ("error", True, False), ("lease_expired", False, False)],
)
def test_a_task_that_is_tried_again_keeps_its_slot(
    cause: AbortCause, final: bool, kept: bool
) -> None:
    config = BatchConfig(tasks=1, episodes_per_task=2)
    builder = BatchBuilder(config, draws=Draws(seed=1))
    for _ in range(2):
        one = replace(episode("a"), episode_id=builder.new_id("a", "train", 0))
        builder.opened(one)
        builder.aborted(replace(one, state="aborted", cause=cause, final=final))
        assert builder.may_begin("b") is not kept
