"""When too many episodes fail, which tasks are given up, and what is wrong with a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineStats, EpisodeRecord
from ajet_core.protocol import AbortCause, FailureConfig
from ajet_core.timeline import Call, TrainBatch, TrainCall, TrainEpisode, call_advantages
from ajet_server.admission.quarantine import TaskFailures
from ajet_server.batches.batch_findings import batch_findings
from ajet_server.gateway.engine_watch import EngineWatch
from ajet_server.observe.failures import FailureMeter
from ajet_testing.suites.samples import make_call, make_episode


def ended(episode_id: str, reward: float = 1.0, group: str = "task") -> EpisodeRecord:
    return replace(make_episode(episode_id, group=group), state="ended", reward=reward)


def aborted(episode_id: str, cause: AbortCause = "error", reason: str = "broken") -> EpisodeRecord:
    return replace(make_episode(episode_id), state="aborted", cause=cause, reason=reason)


def meter(*outcomes: EpisodeRecord, window: int = 4, max_rate: float = 0.5) -> FailureMeter:
    found = FailureMeter(FailureConfig(window=window, max_rate=max_rate))
    for outcome in outcomes:
        found.note(outcome)
    return found


def test_a_share_of_failures_up_to_the_limit_is_borne() -> None:
    assert not meter(aborted("a"), aborted("b"), ended("c"), ended("d")).too_many
    assert meter(aborted("a"), aborted("b"), aborted("c"), ended("d")).too_many


def test_nothing_is_said_before_the_window_is_full() -> None:
    assert not meter(*(aborted(str(n)) for n in range(3))).too_many


def of(client: str, outcome: EpisodeRecord) -> EpisodeRecord:
    return replace(outcome, client_id=client)


def test_failures_of_one_client_are_no_reason_to_stop_others() -> None:
    alone = FailureMeter(FailureConfig(window=4, max_rate=0.5), lambda _: False)
    shared = FailureMeter(FailureConfig(window=4, max_rate=0.5), lambda _: True)
    for number in range(9):
        for meter_ in (alone, shared):
            meter_.note(of("x", aborted(str(number))))
    # Of another client too few are known, and then most of them ended.
    for client in "yyy":
        shared.note(of(client, aborted("y")))
    assert (alone.too_many, shared.too_many) == (True, False)
    shared.note(of("z", aborted("z")))
    assert shared.too_many
    for number in range(4):
        shared.note(of("z", ended(str(number))))
        shared.note(of("x", aborted(str(number))))
        shared.note(of("x", aborted(str(number))))
    assert not shared.too_many


def test_only_the_latest_count() -> None:
    found = meter(*(aborted(str(n)) for n in range(4)))
    assert found.too_many
    found.note(ended("e"))
    found.note(ended("f"))
    assert not found.too_many
    found.note(aborted("g"))
    found.note(aborted("h"))
    assert not found.too_many
    found.note(aborted("i"))
    assert found.too_many
    found.forget()
    assert not found.too_many


@pytest.mark.parametrize("cause", ["cancelled", "lease_expired", "run_stopped"])
def test_clients_that_stop_are_no_failures(cause: AbortCause) -> None:
    assert not meter(*(aborted(str(n), cause) for n in range(8))).too_many


def test_eval_episodes_are_not_looked_at() -> None:
    evals = [replace(aborted(str(n)), kind="eval") for n in range(8)]
    assert not meter(*evals).too_many


def test_a_diagnosis_names_causes_reasons_and_tasks() -> None:
    found = meter(
        aborted("a", "timeout", "TimeoutError: slow\nat 12:01"),
        aborted("b", "timeout", "TimeoutError: slow\nat 12:02"),
        aborted("c", "rate_limit", "RateLimitError: 429"),
        ended("d"),
    )
    text = found.diagnosis()
    assert "3 of the last 4 episodes failed (2 by timeout, 1 by rate limit)" in text
    assert "2 times 'TimeoutError: slow'" in text
    assert "tasks task-1" in text


def test_a_task_is_quarantined_once_and_comes_back_with_a_success() -> None:
    failures = TaskFailures(1)
    assert failures.failed(aborted("a")) is None
    note = failures.failed(aborted("b", "lease_expired", "lost"))
    assert note is not None
    assert (note.aborts, note.reason) == (2, "lost")
    assert failures.failed(aborted("c")) is None
    assert [entry.aborts for entry in failures] == [3]
    failures.succeeded(ended("d"))
    assert failures.refusal("client", "task-1") is None
    assert list(failures) == []


def stats(sampled: int, prompt: int = 0) -> EngineStats:
    return EngineStats(
        running=1, prompt_tokens=prompt, cached_tokens=0, sampled_tokens=sampled, forward_seconds=0
    )


def test_an_engine_that_moves_is_not_stalled() -> None:
    watch = EngineWatch(10.0)
    for now in range(0, 100, 5):
        watch.note(stats(now), calls=3, now=float(now))
        assert watch.stalled == 0.0
    # A long prompt is progress too.
    watch.note(stats(95, prompt=1000), calls=3, now=110.0)
    assert watch.stalled == 0.0


def test_an_engine_without_calls_is_not_stalled() -> None:
    watch = EngineWatch(10.0)
    for now in (0.0, 20.0, 40.0):
        watch.note(stats(7), calls=0, now=now)
    watch.note(stats(7), calls=1, now=50.0)
    assert watch.stalled == 0.0


def test_a_pause_of_the_engine_is_no_stall() -> None:
    watch = EngineWatch(10.0)
    watch.note(stats(7), calls=1, now=0.0)
    watch.note(stats(7), calls=1, now=5.0)
    assert watch.stalled == 5.0
    watch.forget()
    assert watch.stalled == 0.0
    watch.note(stats(7), calls=1, now=400.0)
    assert watch.stalled == 0.0


def test_an_engine_that_stands_still_with_calls_is_given_up() -> None:
    watch = EngineWatch(10.0)
    watch.note(stats(7), calls=1, now=0.0)
    watch.note(stats(7), calls=1, now=9.0)
    assert watch.stalled == 9.0
    with pytest.raises(EngineError, match="sampled nothing for 11 s while 2 calls wait"):
        watch.note(stats(7), calls=2, now=11.0)
    # The one that replaces it has its own time.
    watch.note(stats(0), calls=2, now=12.0)
    assert watch.stalled == 0.0


def findings(
    records: list[EpisodeRecord], *, silent: tuple[str, ...] = (), alike: bool = False
) -> list[str]:
    calls: dict[str, list[Call]] = {}
    for number, record in enumerate(records):
        sampled = [3 if alike else 3 + number]
        call = make_call(f"c-{record.episode_id}", [1, 2], sampled, episode_id=record.episode_id)
        call = replace(call, top_p=1.0, top_k=0)
        calls[record.episode_id] = [] if record.episode_id in silent else [call]
    episodes = [TrainEpisode(r.episode_id, r.group, r.reward or 0.0, "") for r in records]
    made = [calls[r.episode_id] for r in records]
    credit = call_advantages(episodes, made, "group_std", 1.0)
    train = [
        TrainCall.of(call, number, advantage)
        for number, (own, given) in enumerate(zip(made, credit, strict=True))
        for call, advantage in zip(own, given, strict=True)
    ]
    batch = TrainBatch("b", 1, episodes, train, [], 0)
    return list(batch_findings(records, calls, batch).values())


def test_a_good_batch_has_no_findings() -> None:
    assert findings([ended("a", 0.0), ended("b", 1.0)]) == []


def test_equal_rewards_are_told_apart_from_tasks_that_are_each_too_easy_or_too_hard() -> None:
    (same,) = findings([ended("a", 0.5), ended("b", 0.5)])
    assert "all 2 rewards of the batch are 0.5" in same
    groups = [ended(f"{g}{n}", r, g) for g, r in (("x", 0.0), ("y", 1.0)) for n in range(2)]
    (flat,) = findings(groups)
    assert "rewards are equal within each task" in flat


@pytest.mark.parametrize("rewards", [(0.5, 0.5), (0.0, 1.0)])
def test_identical_answers_are_told_apart_from_equal_rewards(rewards: tuple[float, float]) -> None:
    groups = [ended(f"{g}{n}", r, g) for g, r in zip("xy", rewards, strict=True) for n in range(2)]
    (alike,) = findings(groups, alike=True)
    assert "within each task all answers are identical" in alike
    (different,) = findings(groups)
    assert "identical" not in different


def test_findings_of_batches_without_a_signal_have_one_cause_and_one_advice() -> None:
    equal = [ended("a", 0.5), ended("b", 0.5)]
    groups = [ended(f"{g}{n}", r, g) for g, r in (("x", 0.0), ("y", 1.0)) for n in range(2)]
    for text in (*findings(equal), *findings(groups), *findings(groups, alike=True)):
        cause, _, advice = text.rpartition(": ")
        assert "nothing can be learned" in cause
        assert advice.startswith(("check ", "set "))


def test_tasks_that_train_nothing_are_named_if_they_are_many() -> None:
    flat = [ended(f"x{n}", 1.0, "x") for n in range(2)]
    (found,) = findings([*flat, ended("y0", 0.0, "y"), ended("y1", 1.0, "y")])
    assert "in 1 of 2 tasks, which therefore contribute nothing to training (x)" in found
    many = [ended(f"{g}{r:g}", r, g) for g in "yzw" for r in (0.0, 1.0)]
    assert findings([*flat, *many]) == []


def test_episodes_without_calls_are_named() -> None:
    found = findings([ended("a", 0.0), ended("b", 1.0)], silent=("a",))
    assert "1 of 2 episodes (a) made no model call" in found[0]
    (none,) = findings([ended("a", 0.0), ended("b", 1.0)], silent=("a", "b"))
    assert "none of the batch's 2 episodes made a model call" in none
