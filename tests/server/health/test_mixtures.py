"""Batches of a mixture: what they are made of may change, what each tag's figures say may not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ajet_core.protocol import FailureConfig
from ajet_server.batches.batch_facts import tag_facts
from ajet_server.health import HealthFinding, HealthMonitor
from ajet_testing.suites.samples import make_call
from tests.server.test_batch_facts import episode

EPISODES = 8
TASKS = 10


def batch(
    rng: random.Random,
    tasks: Mapping[str, int],
    success: Mapping[str, float],
    **of_answers: Mapping[str, float],
) -> dict[str, float]:
    """Figures of a batch with so many tasks of each tag, whose episodes succeed so often.

    :param of_answers: by name of a metric of single answers, its value for each tag.
    """
    records = [
        replace(
            episode(f"{tag}{task}-{i}", float(rng.random() < success[tag]), f"{tag}{task}"), tag=tag
        )
        for tag, count in tasks.items()
        for task in range(count)
        for i in range(EPISODES)
    ]
    found = tag_facts(tasks, records, [[make_call(r.episode_id, [1], [2])] for r in records])
    rewards = [record.reward or 0.0 for record in records]
    mean = sum(rewards) / len(rewards)
    found |= {
        "reward_mean": mean,
        "reward_std": (mean * (1 - mean)) ** 0.5,
        "tasks": float(sum(tasks.values())),
    }
    for name, values in of_answers.items():
        found |= {f"{name}/{tag}": values[tag] for tag in tasks}
        found[name] = sum(values[tag] * count for tag, count in tasks.items()) / TASKS
    return found


def judged(history: Sequence[Mapping[str, float]]) -> list[tuple[int, HealthFinding]]:
    """What begins, with the step at which it does."""
    monitor = HealthMonitor(FailureConfig())
    return [
        (step, finding)
        for step, metrics in enumerate(history, start=1)
        for finding in monitor.record(step, metrics, 0.0)
    ]


EASY = {"easy": 9, "hard": 1}
HARD = {"easy": 1, "hard": 9}
SUCCESS = {"easy": 0.9, "hard": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("after", [HARD, {"hard": 10}, {"hard": 5, "new": 5}])
def test_a_change_of_the_mixture_is_no_fall_of_rewards(seed: int, after: dict[str, int]) -> None:
    rng = random.Random(seed)
    success = {**SUCCESS, "new": 0.02}
    history = [batch(rng, EASY if step < 16 else after, success) for step in range(60)]
    # Their mean over all tags falls by more than the limit.
    assert history[-1]["reward_mean"] < 0.4 < 0.7 < history[0]["reward_mean"]
    assert judged(history) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_within_one_tag_is_found_and_named(seed: int) -> None:
    rng = random.Random(seed)
    lost = {**SUCCESS, "easy": 0.0}
    half = {"easy": 5, "hard": 5}
    history = [batch(rng, half, SUCCESS if step < 16 else lost) for step in range(20)]
    ((step, finding),) = judged(history)
    assert (finding.kind, finding.pauses) == ("reward_drop", True)
    assert step <= 20
    assert finding.sentence.startswith("tag easy: the mean reward fell from")
    # Batches 17 and later are those of the fall; the weights before step 16 sampled what was good.
    assert 13 <= finding.good_step <= 15


def test_what_one_task_a_batch_shows_is_judged_by_several_batches() -> None:
    rng = random.Random(0)
    swapped = {"easy": 0.0, "hard": 0.1}
    history = [batch(rng, HARD, SUCCESS if step < 40 else swapped) for step in range(64)]
    ((step, finding),) = judged(history)
    assert finding.kind == "reward_drop"
    assert 44 <= step <= 56
    # All batches that it is judged by may be bad.
    assert finding.step <= 41
    # Chance alone is found nowhere.
    assert judged(history[:40]) == []


def test_the_trend_of_a_tag_that_was_away_begins_anew() -> None:
    rng = random.Random(0)
    away = [batch(rng, {"hard": 10}, SUCCESS) for _ in range(21)]
    before = [batch(rng, EASY, SUCCESS) for _ in range(10)]
    after = [batch(rng, EASY, {"easy": 0.1, "hard": 0.1}) for _ in range(10)]
    assert judged([*before, *away, *after]) == []
    assert [f.kind for _, f in judged([*before, *away[:5], *after])] == ["reward_drop"]


@pytest.mark.parametrize(
    ("name", "kind", "values", "worse"),
    [
        (
            "tokens_per_call",
            "length",
            {"easy": 10.0, "hard": 200.0},
            {"easy": 200.0, "hard": 200.0},
        ),
        ("sampled_entropy", "entropy", {"easy": 0.05, "hard": 1.0}, {"easy": 1.0, "hard": 1.0}),
    ],
)
def test_other_tags_have_other_answers(
    name: str, kind: str, values: dict[str, float], worse: dict[str, float]
) -> None:
    rng = random.Random(0)
    same = {"easy": 0.5, "hard": 0.5}

    def history(then: dict[str, int], of: dict[str, float]) -> list[dict[str, float]]:
        before = [batch(rng, EASY, same, **{name: values}) for _ in range(12)]
        return [*before, *(batch(rng, then, same, **{name: of}) for _ in range(12))]

    assert judged(history(HARD, values)) == []
    ((step, finding),) = judged(history(EASY, worse))
    assert (finding.kind, step <= 16) == (kind, True)


def test_a_new_tag_whose_tool_calls_are_malformed_is_told_and_one_that_unlearns_them_pauses() -> (
    None
):
    rng = random.Random(0)
    half = {"easy": 5, "hard": 5}
    success = {**SUCCESS, "new": 0.1}
    # Of one call an episode.
    lost = {"easy": 0.0, "hard": 40.0, "new": 40.0}
    fine = dict.fromkeys(lost, 0.0)
    before = [batch(rng, half, success, calls_malformed=fine) for _ in range(8)]
    new = batch(rng, {"easy": 5, "new": 5}, success, calls_malformed=lost)
    unlearnt = batch(rng, half, success, calls_malformed=lost)
    for metrics, pauses in ((new, False), (unlearnt, True)):
        ((_, finding),) = judged([*before, metrics])
        assert (finding.kind, finding.pauses) == ("malformed", pauses)
