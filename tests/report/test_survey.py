"""One pass over the episodes of a run."""

from __future__ import annotations

from dataclasses import replace

from ajet_cli.report.survey import EpisodeSurvey
from ajet_core.interfaces import EpisodeRecord
from ajet_testing.suites.samples import make_episode


def ended(name: str, reward: float, task: str) -> EpisodeRecord:
    """An episode with a reward."""
    return replace(make_episode(name), task_id=task, state="ended", reward=reward)


def test_the_best_are_of_different_tasks_where_possible() -> None:
    survey = EpisodeSurvey(1.0)
    for name, reward, task in [
        ("a1", 1.0, "a"),
        ("b1", 0.9, "b"),
        ("a2", 1.0, "a"),
        ("c1", 0.0, "c"),
        ("bad", float("inf"), "d"),
    ]:
        survey.add(ended(name, reward, task))
    assert survey.best(2) == ["a2", "b1"]
    assert survey.worst(1) == ["c1"]
    # The rest are of tasks that were chosen before.
    assert survey.best(4) == ["a2", "a1", "b1", "c1"]


def test_memory_for_the_best_is_bounded_and_they_are_still_the_best() -> None:
    survey = EpisodeSurvey(1.0)
    for i in range(5000):
        survey.add(ended(f"e{i}", float(i * 7919 % 5000), f"t{i}"))
    assert [int(one[1:]) * 7919 % 5000 for one in survey.best(3)] == [4999, 4998, 4997]
    assert [int(one[1:]) * 7919 % 5000 for one in survey.worst(3)] == [0, 1, 2]


def test_damaged_evaluations_are_a_problem_and_no_error() -> None:
    survey = EpisodeSurvey(1.0)
    good = replace(ended("a", 1.0, "a"), kind="eval", claim_version=1)
    survey.add(good)
    assert [one.passed for one in survey.evaluations] == [1]
    assert survey.problem == ""
    survey.add(replace(good, claim_version="x"))  # type: ignore[arg-type]
    assert survey.evaluations == []
    assert "An evaluation episode is damaged" in survey.problem


def test_failures_keep_the_newest_reason_unless_texts_are_left_out() -> None:
    for reasons, expected in ((True, "second"), (False, "")):
        survey = EpisodeSurvey(1.0, reasons=reasons)
        for reason in ("first", "second"):
            survey.add(
                replace(make_episode(reason), state="aborted", reason=reason, cause="timeout")
            )
        assert survey.failures["timeout"].episodes == 2
        assert survey.failures["timeout"].reason == expected
