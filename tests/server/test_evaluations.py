"""The totals of evaluations, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.pass_at import pass_at_k
from ajet_core.protocol import Evaluation, EvaluationConfig
from ajet_server.episodes.evaluations import Evaluations, is_mixed
from ajet_server.store.evaluation_counts import EvaluationCount
from ajet_testing.suites.samples import conversation, make_episode


def episode(task: str = "t", **changes: Any) -> EpisodeRecord:
    claimed = replace(make_episode(), kind="eval", task_id=task, tag="x", claim_version=3)
    return replace(claimed, **changes)


def rolled(evaluations: Evaluations, *records: EpisodeRecord) -> None:
    for record in records:
        evaluations.opened(replace(record, state="open", reward=None))
    for record in records:
        evaluations.finished(record)


def ended(reward: float, task: str = "t", **changes: Any) -> EpisodeRecord:
    return episode(task, state="ended", reward=reward, **changes)


def test_an_evaluation_has_the_totals_of_its_episodes() -> None:
    evaluations = Evaluations()
    evaluations.begin(EvaluationConfig(pass_reward=0.5, pass_at=(1, 2)), [])
    rolled(
        evaluations,
        ended(0.5),
        ended(0.0, mixed=True),
        ended(1.0, "u"),
        episode("v", state="aborted"),
    )
    evaluations.opened(episode("w"))
    assert evaluations.all() == [
        Evaluation(
            client_id="client",
            tag="x",
            step=3,
            tasks=2,
            episodes=3,
            open=1,
            aborted=1,
            mixed=1,
            reward_mean=0.5,
            pass_at={1: 0.75, 2: 1.0},
        )
    ]


def test_training_episodes_are_no_evaluation() -> None:
    evaluations = Evaluations()
    rolled(evaluations, replace(ended(1.0), kind="train"))
    assert evaluations.all() == []
    assert evaluations.completed() == []


def test_clients_task_sets_and_steps_are_counted_apart() -> None:
    evaluations = Evaluations()
    rolled(
        evaluations,
        ended(1.0),
        ended(1.0, claim_version=4),
        ended(1.0, tag="y"),
        ended(1.0, client_id="another"),
    )
    keys = [(e.client_id, e.tag, e.step) for e in evaluations.all()]
    assert keys == [
        ("another", "x", 3),
        ("client", "x", 3),
        ("client", "x", 4),
        ("client", "y", 3),
    ]
    assert [(e.client_id, e.tag, e.step) for e in evaluations.latest()] == [
        ("another", "x", 3),
        ("client", "x", 4),
        ("client", "y", 3),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.25, 1.0])), min_size=1),
    st.integers(0, 30),
)
def test_totals_are_the_same_whether_episodes_end_before_or_after_a_restart(
    outcomes: list[tuple[str, float]], restart: int
) -> None:
    config = EvaluationConfig(pass_at=(1, 2))
    whole, again = Evaluations(), Evaluations()
    whole.begin(config, [])
    rolled(whole, *(ended(reward, task) for task, reward in outcomes))
    before, after = outcomes[:restart], outcomes[restart:]
    by_task = {task: [r for t, r in before if t == task] for task, _ in before}
    again.begin(
        config,
        [
            EvaluationCount(
                "client", "x", 3, task, len(own), sum(r >= 1.0 for r in own), 0, sum(own), 0
            )
            for task, own in by_task.items()
        ],
    )
    rolled(again, *(ended(reward, task) for task, reward in after))
    assert again.all() == whole.all()
    rewards = {task: [r for t, r in outcomes if t == task] for task, _ in outcomes}
    expected = [pass_at_k(len(own), own.count(1.0), 1) for own in rewards.values()]
    assert whole.all()[0].pass_at[1] == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_open_episodes_are_open_under_a_new_configuration() -> None:
    evaluations = Evaluations()
    evaluations.opened(episode())
    rolled(evaluations, ended(0.5))
    evaluations.begin(
        EvaluationConfig(pass_reward=0.5), [EvaluationCount("client", "x", 3, "t", 1, 1, 0, 0.5, 0)]
    )
    assert [(e.open, e.episodes, e.pass_at) for e in evaluations.all()] == [(1, 1, {1: 1.0})]


def test_an_evaluation_is_told_once_when_its_last_open_episode_is_over() -> None:
    evaluations = Evaluations()
    evaluations.opened(episode("u"))
    rolled(evaluations, ended(1.0))
    assert evaluations.completed() == []
    evaluations.finished(ended(0.0, "u"))
    assert [e.episodes for e in evaluations.completed()] == [2]
    assert evaluations.completed() == []


def test_inventing_tasks_does_not_fill_the_memory() -> None:
    evaluations = Evaluations(kept_tasks=10)
    evaluations.opened(episode("still open", claim_version=0))
    for step in range(1, 6):
        rolled(evaluations, *(ended(1.0, f"t{n}", claim_version=step) for n in range(4)))
    assert [(e.step, e.tasks) for e in evaluations.all()] == [(0, 0), (4, 4), (5, 4)]
    rolled(evaluations, *(ended(n / 39, f"t{n}", claim_version=6) for n in range(40)))
    (_, found) = evaluations.all()
    assert (found.step, found.tasks, found.episodes) == (6, 10, 40)
    assert (found.reward_mean, found.pass_at) == (pytest.approx(0.5), {1: 0.0})
    rolled(evaluations, ended(1.0, "t0", claim_version=6))
    assert evaluations.all()[1].pass_at == {1: pytest.approx(0.05)}


def test_inventing_task_sets_does_not_fill_the_memory_and_concerns_nobody_else() -> None:
    evaluations = Evaluations(kept_evaluations=3)
    rolled(evaluations, ended(1.0, client_id="another"))
    for number in range(9):
        rolled(evaluations, ended(1.0, tag=f"x{number}"))
    kept = [(e.client_id, e.tag) for e in evaluations.all()]
    assert kept == [("another", "x"), ("client", "x6"), ("client", "x7"), ("client", "x8")]
    rolled(evaluations, ended(0.0, tag="x6"))
    assert evaluations.all()[1].episodes == 2


def test_a_status_names_the_task_sets_that_changed_last() -> None:
    evaluations = Evaluations()
    for number in range(80):
        rolled(evaluations, ended(1.0, tag=f"{number:02}"))
    rolled(evaluations, ended(1.0, tag="00", claim_version=4))
    shown = [(e.tag, e.step) for e in evaluations.latest()]
    assert shown == [("00", 4), *((f"{number:02}", 3) for number in range(17, 80))]


@pytest.mark.parametrize(
    ("versions", "reason", "mixed"),
    [
        ([3, 3, 3], "stop", False),
        ([3, 3, 4], "stop", True),
        ([2, 2, 2], "stop", True),
        ([4, 4, 4], "abort", False),
    ],
)
def test_an_episode_is_mixed_if_its_agent_saw_tokens_of_other_weights(
    versions: list[int], reason: str, mixed: bool
) -> None:
    calls = [
        replace(conversation(1)[0], policy_versions=[3, 3, 3]),
        replace(conversation(1)[0], policy_versions=versions, finish_reason=reason),
    ]
    assert is_mixed(episode(), calls) is mixed
