"""Each check by itself: what it finds, what it leaves alone, and what it cannot judge."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.protocol import FailureConfig, RunConfig
from ajet_server.health import CHECKS, Reading
from ajet_server.health.past import Past

LIMITS = FailureConfig()
BY_KIND = {check.kind: check for check in CHECKS}

HEALTHY: Mapping[str, float] = {
    "tasks": 8,
    "tasks_equal": 1,
    "tasks_alike": 0,
    "no_signal": 0,
    "calls": 300,
    "calls_aborted": 0,
    "calls_cut_off": 3,
    "calls_malformed": 4,
    "tokens_per_call": 20,
    "episodes": 64,
    "episodes_stale": 0,
    "tokens_sampled": 6000,
    "tokens_stale": 0,
    "tokens_dropped": 60,
    "advantage_bias": -0.1,
    "reward_mean": 0.5,
    "reward_std": 0.4,
    "sampled_entropy": 0.2,
    "kl": 0.2,
    "grad_norm": 0.3,
    "updates": 4,
    "updates_shortened": 0,
    "logprob_gap_mean": 0.005,
    "component_mean/success": 0.4,
    "reward_success_correlation": 0.9,
    "reward_length_correlation": -0.3,
    "tool_answers": 40,
    "tool_answers_alike": 5,
}


def steps(count: int = 12, **changes: Any) -> list[dict[str, float]]:
    """A healthy history; a change is a number for all steps, or a list for the last ones."""
    found = [dict(HEALTHY) for _ in range(count)]
    for name, change in changes.items():
        values = change if isinstance(change, list) else [change] * count
        for step, value in zip(found[-len(values) :], values, strict=True):
            step[name] = value
    return found


def read(kind: str, history: list[dict[str, float]], limits: FailureConfig = LIMITS) -> Reading:
    reading = BY_KIND[kind].read(Past.of(history), limits)
    assert isinstance(reading, Reading), reading
    return reading


@pytest.mark.parametrize("kind", sorted(BY_KIND))
@pytest.mark.parametrize("count", [8, 12, 60])
def test_a_healthy_history_is_far_from_every_limit(kind: str, count: int) -> None:
    assert read(kind, steps(count)).level < 0.5


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("zero_signal", {"no_signal": [1] * 5}, "5 batches in a row have no signal"),
    ("zero_signal", {"no_signal": [1] * 5}, "all rewards are equal, although the answers differ"),
    (
        "zero_signal",
        {"no_signal": [1] * 5, "tasks_alike": [8]},
        "because all answers to each task are identical: the sampling is greedy",
    ),
    ("equal_rewards", {"tasks_equal": [7.5, 7.5, 7.5]}, "94 % of the tasks"),
    ("cut_off", {"calls_cut_off": [200]}, "67 % of the answers were cut off"),
    (
        "cut_off",
        {"calls_lost": [300], "calls_lost_cut_off": [297]},
        "50 % of the answers were cut off",
    ),
    ("malformed", {"calls_malformed": [240]}, "80 % of the answers contain a tool call"),
    ("stale", {"episodes_stale": [64]}, "50 % of the episodes are not trained on"),
    ("trimmed", {"tokens_dropped": [1200], "tokens_stale": [600]}, "30 % of the sampled tokens"),
    ("advantage_bias", {"advantage_bias": [-0.9, -0.8, -0.9]}, "93 % of the total absolute"),
    ("logprob_gap", {"logprob_gap_mean": [0.3]}, "differ from the trainer's by 0.3 nats"),
    ("logprob_gap", {"logprob_gap_mean": [0.06, 0.07, 0.06]}, "before, it was 0.005"),
    ("kl", {"kl": [3, 3, 3]}, "is 3 nats; before, it was 0.2"),
    ("kl", {"kl": [0, 0, 0]}, "is 0 nats; before, it was 0.2"),
    ("entropy", {"sampled_entropy": [0.7, 0.8, 0.9]}, "is 0.9 nats per token; before, it was 0.2"),
    ("entropy", {"sampled_entropy": [2.1]}, "is 2.1 nats per token; before, it was 0.2"),
    ("entropy", {"sampled_entropy": [1e-3, 1e-3, 1e-3]}, "is 0.001 nats per token"),
    (
        "entropy",
        {"sampled_entropy": [0.01, 0.01, 0.02]},
        "is 0.02 nats per token; before, it was 0.2",
    ),
    ("length", {"tokens_per_call": [80, 90, 90]}, "have 90 tokens on average; before, they had 20"),
    ("length", {"tokens_per_call": [2, 2, 2]}, "have 2 tokens on average; before, they had 20"),
    ("grad_norm", {"grad_norm": [10, 0.3, 12]}, "at least 10 in two of the last 3 steps"),
    (
        "shortened",
        {"updates_shortened": [3, 3, 4, 4, 3]},
        "75 % of the updates in each of the last 5",
    ),
    ("reward_drop", {"reward_mean": [0, 0, 0]}, "fell from 0.5 to 0"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), FAULTS)
def test_each_fault_is_found_by_its_check(kind: str, changes: dict[str, Any], words: str) -> None:
    reading = read(kind, steps(**changes))
    assert reading.level >= 1
    assert words in reading.cause


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({"tasks_alike": [8]}, "set a sampling temperature above 0"),
        ({}, "check the reward function, or choose easier or harder tasks"),
        (
            {"reward_mean": [-0.5] * 5},
            "if tasks and rewards are unchanged, go back to an earlier checkpoint",
        ),
    ],
)
def test_the_way_out_of_no_signal_fits_its_cause(changes: dict[str, Any], way_out: str) -> None:
    reading = read("zero_signal", steps(no_signal=[1] * 5, **changes))
    assert reading.way_out.startswith(way_out)


def test_answers_that_are_cut_off_since_some_step_are_told_from_a_limit_that_is_too_low() -> None:
    since = read("cut_off", steps(calls_cut_off=[200]))
    assert "in the first steps, it was 1 %" in since.cause
    assert since.way_out.startswith("the model may have unlearnt to end its answers")
    always = read("cut_off", [{**step, "calls_cut_off": 200.0} for step in steps()])
    assert "in the first steps" not in always.cause
    assert always.way_out == ""
    lucky = [
        {**step, "calls_cut_off": 0.0 if number == 0 else 200.0}
        for number, step in enumerate(steps())
    ]
    assert read("cut_off", lucky).way_out == ""


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        # One batch is chance, and a single value may be anything.
        ("zero_signal", {"no_signal": [1, 1, 1, 0, 1, 1, 1, 1]}),
        ("entropy", {"sampled_entropy": [0.2, 0.9, 0.2]}),
        ("entropy", {"sampled_entropy": [0.05, 0.05, 0.05]}),
        # The batches of a world in which failing episodes are longer than others.
        ("entropy", {"sampled_entropy": [0.1] * 9 + [0.33, 0.31, 0.32]}),
        ("kl", {"kl": [0.2, 2.5, 0.2]}),
        ("length", {"tokens_per_call": [20, 90, 20]}),
        ("advantage_bias", {"advantage_bias": [-0.9, 0.9, -0.9]}),
        ("shortened", {"updates_shortened": [4, 4, 1, 4, 4]}),
        # Noise of batches is no fall.
        ("reward_drop", {"reward_mean": [0.9, 0.1] * 6}),
        # A divergence that begins at nothing grows fast.
        ("kl", {"kl": [0.0, 0.0, 0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1]}),
        # Small gradients of a batch with little signal make the next one no spike.
        ("grad_norm", {"grad_norm": [0.02, 0.02, 0.02, 0.02, 0.4]}),
        # One rare answer.
        ("grad_norm", {"grad_norm": [0.3, 100.0, 0.4]}),
    ],
)
def test_chance_is_no_fault(kind: str, changes: dict[str, Any]) -> None:
    assert read(kind, steps(**changes)).level < 1


def ramp(start: float, factor: float, most: float = 1e9) -> list[float]:
    """60 steps, each of which is the one before times `factor`."""
    return [min(most, start * factor**step) for step in range(60)]


@pytest.mark.parametrize(
    ("kind", "name", "course"),
    [
        ("entropy", "sampled_entropy", ramp(0.3, 1.1, 6.0)),
        ("entropy", "sampled_entropy", ramp(0.3, 0.9)),
        ("length", "tokens_per_call", ramp(20, 1.1)),
        ("length", "tokens_per_call", ramp(200, 0.9)),
        ("kl", "kl", ramp(0.05, 1.2)),
        ("logprob_gap", "logprob_gap_mean", ramp(0.001, 1.1)),
    ],
)
def test_a_slow_change_is_found_too(kind: str, name: str, course: list[float]) -> None:
    history = steps(60, **{name: course})
    levels = [read(kind, history[:count]).level for count in range(6, 61)]
    assert max(levels) >= 1
    # It is not found before it is large.
    assert max(levels[:10]) < 1


@pytest.mark.parametrize(
    ("kind", "name", "course"),
    [
        ("entropy", "sampled_entropy", ramp(0.5, 0.95)),
        ("length", "tokens_per_call", ramp(20, 1.03)),
        ("kl", "kl", ramp(1e-4, 1.15)),
    ],
)
def test_what_models_learn_in_the_long_run_is_no_fault(
    kind: str, name: str, course: list[float]
) -> None:
    history = steps(60, **{name: course})
    assert max(read(kind, history[:count]).level for count in range(6, 61)) < 1


def test_answers_without_entropy_are_a_fault_only_before_the_tasks_are_solved() -> None:
    certain = [0.5, 0.3, 0.1, 0.05, 0.01, 1e-3, 1e-3, 1e-3]
    rising = [0.1, 0.3, 0.5, 0.7, 0.95, 0.98, 0.97, 0.99]
    equal = [1, 1, 2, 3, 5, 6, 7, 7]
    solved = {"sampled_entropy": certain, "reward_mean": rising}
    assert read("entropy", steps(8, **solved, tasks_equal=equal)).level < 1
    # Rewards at their best by chance: the episodes of a task still differ.
    assert read("entropy", steps(8, **solved, tasks_equal=1)).level >= 1
    stuck = [0.1, 0.3, 0.5, 0.5, 0.4, 0.3, 0.3, 0.3]
    assert read("entropy", steps(8, sampled_entropy=certain, reward_mean=stuck)).level >= 1
    assert read("entropy", steps(8, sampled_entropy=certain)).level >= 1


def test_a_divergence_that_grew_and_is_lost_is_found_at_once() -> None:
    grown = [0.0002, 0.001, 0.003, 0.005, 0.011, 0.01, 0.028, 0.042, 0.093, 3e-4, 1e-4, 3e-4]
    assert read("kl", steps(12, kl=grown)).level >= 1
    assert read("kl", steps(9, kl=grown[:9])).level < 1


def test_a_model_that_is_as_good_as_it_ever_was_is_no_reason_to_pause() -> None:
    rising = [0.1, 0.3, 0.5, 0.7, 0.95, 1.0, 1.0, 1.0]
    silent = {"no_signal": [0, 0, 0, 0, 0, 1, 1, 1]}
    history = steps(8, reward_mean=rising, reward_std=[0, 0, 0], **silent)
    assert not read("zero_signal", history).pauses
    # Three of eight tasks fail in all their episodes: the model has become greedy.
    greedy = steps(8, reward_mean=[*rising[:4], 0.6, 0.6, 0.6, 0.7], reward_std=0.48, **silent)
    assert read("zero_signal", greedy).pauses
    fallen = steps(8, reward_mean=rising[::-1], no_signal=[0, 0, 0, 0, 0, 1, 1, 1])
    assert read("zero_signal", fallen).pauses
    # Rewards that nothing was learnt for are no success.
    foreign = steps(8, reward_mean=[*rising[:5], 3.0, 3.0, 3.0], no_signal=[0, 0, 0, 0, 0, 1, 1, 1])
    assert read("zero_signal", foreign).pauses
    constant = steps(8, reward_mean=1.0, no_signal=1.0)
    assert read("zero_signal", constant).pauses


def solving(rng: random.Random, count: int) -> list[dict[str, float]]:
    """A model that learns to solve all solvable tasks, nine in ten, with 16 tasks a step."""
    history = []
    for step in range(count):
        ability = min(0.998, 0.25 + step / 30)
        rewards = [
            [float(paid and rng.random() < ability) for _ in range(8)]
            for paid in (rng.random() < 0.9 for _ in range(16))
        ]
        equal = sum(len(set(task)) == 1 for task in rewards)
        every = [reward for task in rewards for reward in task]
        history.append(
            {
                **HEALTHY,
                "tasks": 16,
                "tasks_equal": equal,
                "no_signal": float(equal == 16),
                "reward_mean": fmean(every),
                "reward_std": pstdev(every),
            }
        )
    return history


@pytest.mark.slow
def test_solved_tasks_of_different_worth_are_no_reason_to_pause() -> None:
    silent = paused = 0
    for seed in range(100):
        history = solving(random.Random(seed), 80)
        for end in range(30, 80, 5):
            reading = read("zero_signal", history[:end])
            silent += reading.level >= 1
            paused += reading.level >= 1 and reading.pauses
    assert silent > 100
    assert paused == 0


def test_rewards_that_become_constant_at_once_pause_a_run_that_has_learned() -> None:
    for seed in range(50):
        # Half way, with most tasks still undecided.
        history = solving(random.Random(seed), 10)
        broken = [{**history[-1], "no_signal": 1.0, "tasks_equal": 16, "reward_mean": 0.25}] * 5
        assert read("zero_signal", [*history, *broken]).pauses


def test_a_model_that_never_knew_the_form_of_a_call_is_no_reason_to_pause() -> None:
    assert not read("malformed", steps(calls_malformed=250)).pauses
    assert read("malformed", steps(calls_malformed=[250])).pauses


def test_what_a_trainer_does_not_report_is_not_judged() -> None:
    past = Past.of([{"calls": 3.0}] * 12)
    for check in CHECKS:
        reading = check.read(past, LIMITS)
        assert isinstance(reading, str) or reading.level == 0, check.kind


# A busy machine is slow to make examples.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(sorted(HEALTHY)), st.floats(-1e6, 1e6)),
        max_size=12,
    )
)
def test_no_history_makes_a_check_fail(changes: list[tuple[int, str, float]]) -> None:
    history = steps(8)
    for step, name, value in changes:
        history[step][name] = value
    for check in CHECKS:
        for count in range(1, len(history) + 1):
            reading = check.read(Past.of(history[:count]), LIMITS)
            assert isinstance(reading, str) or reading.level == reading.level


@pytest.mark.parametrize(
    "limit",
    [
        {"zero_signal_steps": 0},
        {"max_cut_off": 1.5},
        {"max_cut_off": 0},
        {"max_entropy_growth": 1},
        {"max_logprob_gap": -1},
        {"pause_on": ["everything"]},
    ],
)
def test_impossible_limits_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        RunConfig.model_validate({"model": {"path": "m"}, "failures": limit})
    assert refused.value.errors()[0]["loc"][:2] == ("failures", *limit)


def hacked(count: int, **changes: Any) -> list[dict[str, float]]:
    """Steps whose rewards follow the length and not the success."""
    figures = {
        "component_mean/success": 0.2,
        "reward_success_correlation": -0.4,
        "reward_length_correlation": 0.97,
    }
    return steps(count, **{**figures, **changes})


def test_rewards_that_follow_the_length_and_not_success_are_a_finding() -> None:
    assert read("reward_mismatch", hacked(4)).level < 1
    reading = read("reward_mismatch", hacked(5))
    assert reading.level >= 1
    assert "not their component success" in reading.cause


@pytest.mark.parametrize(
    "changes", [{"reward_success_correlation": 0.9}, {"reward_length_correlation": 0.4}]
)
def test_rewards_that_follow_success_or_not_the_length_are_none(changes: dict[str, float]) -> None:
    assert read("reward_mismatch", hacked(12, **changes)).level == 0


def test_rewards_that_follow_the_length_less_closely_keep_a_finding_and_begin_none() -> None:
    loosely = {"reward_length_correlation": 0.6}
    history = [*hacked(6), *hacked(2, **loosely)]
    reading = read("reward_mismatch", history)
    assert 0.5 <= reading.level < 1
    assert "in the last 8 batches, rewards follow the length" in reading.cause
    assert 0.5 <= read("reward_mismatch", hacked(12, **loosely)).level < 1
    assert read("reward_mismatch", [*history, *steps(1)]).level == 0


def test_batches_without_differences_do_not_end_a_row_of_mismatches() -> None:
    history = hacked(7)
    for step in history[3:5]:
        del step["reward_success_correlation"]
    assert read("reward_mismatch", history).level >= 1


def test_a_reward_that_rises_while_success_falls_is_a_finding() -> None:
    noise = [0.002 * (-1) ** number for number in range(10)]
    rising = [0.3 + 0.03 * (at > 4) + each for at, each in enumerate(noise)]
    falling = [0.4 - 0.1 * (at > 4) + each for at, each in enumerate(noise)]
    figures = {"reward_success_correlation": 0.1}
    history = hacked(10, reward_mean=rising, **{"component_mean/success": falling}, **figures)
    reading = read("reward_mismatch", history)
    assert reading.level >= 1
    assert "but the component success fell from 0.4 to 0.3" in reading.cause
    history = hacked(10, reward_mean=rising, **{"component_mean/success": rising}, **figures)
    assert read("reward_mismatch", history).level <= 0


def test_without_a_component_success_rewards_are_not_compared() -> None:
    history = steps()
    for step in history:
        del step["component_mean/success"]
    answer = BY_KIND["reward_mismatch"].read(Past.of(history), LIMITS)
    assert isinstance(answer, str)
    assert "success" in answer


def test_answers_of_tools_that_are_all_alike_are_a_finding() -> None:
    alike = steps(3, tool_answers=40, tool_answers_alike=38)
    assert read("tools_alike", alike).level >= 1
    assert read("tools_alike", steps(3, tool_answers=40, tool_answers_alike=20)).level < 1
    few = BY_KIND["tools_alike"].read(
        Past.of(steps(1, tool_answers=4, tool_answers_alike=4)), LIMITS
    )
    assert isinstance(few, str)


def test_shortened_updates_name_the_limit_and_the_learning_rate() -> None:
    history = steps(5, updates_shortened=4, learning_rate=0.02)
    cause = read("shortened", history).cause
    assert "algorithm.max_update_kl (0.01 nats per token if it is null)" in cause
    assert "the learning rate is 0.02" in cause
