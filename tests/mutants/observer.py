"""Mutations of the observers of a small plugin."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from typing import Any

from ajet_core.interfaces import EpisodeRecord
from ajet_core.plugin import hookimpl
from ajet_core.protocol import ServerState, StepSummary
from tests.mutants.planting import Mutants, around, put
from tests.plugin import watching

small = Mutants("observer", "tests/plugin/test_observer_suite.py::TestWatching")
ALL = (small,)

seen: list[Any] = []


def state(by: Any) -> None:
    around(watching, "see_state", by)


def episode(by: Any) -> None:
    around(watching, "see_episode", by)


def step(by: Any) -> None:
    around(watching, "see_step", by)


@small
def a_hook_is_misspelled() -> None:
    put(watching, "ajet_step_finishd", hookimpl(lambda summary: None))


@small
def a_hook_is_a_coroutine() -> None:
    async def ajet_step_finished(summary: StepSummary) -> None:
        watching.see_step(summary)

    put(watching, "ajet_step_finished", hookimpl(ajet_step_finished))


@small
def it_observes_nothing() -> None:
    for name in ("ajet_state_changed", "ajet_episode_finished", "ajet_step_finished"):
        delattr(watching, name)


@small
def importing_it_imports_numpy() -> None:
    import numpy  # noqa: F401


@small
def it_exits_when_the_run_is_paused() -> None:
    def see(original: Any, now: ServerState) -> None:
        original(now)
        if now == ServerState.PAUSED:
            sys.exit(1)

    state(see)


@small
def it_expects_that_a_run_begins_offline() -> None:
    def see(original: Any, now: ServerState) -> None:
        if not seen and now != ServerState.OFFLINE:
            raise RuntimeError(now)
        seen.append(now)
        original(now)

    state(see)


@small
def an_aborted_episode_has_a_reward() -> None:
    episode(lambda original, one: original(one) or round(one.reward, 3))


@small
def it_counts_three_causes() -> None:
    causes = {"": 0, "lease_expired": 0, "error": 0}
    episode(lambda original, one: original(one) or causes[one.cause])


@small
def a_reason_is_a_format() -> None:
    episode(lambda original, one: original(one) or one.reason % ())


@small
def a_name_has_one_line() -> None:
    def see(original: Any, one: EpisodeRecord) -> None:
        original(one)
        (_,) = one.task_id.splitlines()

    episode(see)


@small
def a_name_is_a_file() -> None:
    def see(original: Any, one: EpisodeRecord) -> None:
        original(one)
        with open(f"/tmp/{one.task_id}.log", "a", encoding="utf-8"):  # noqa: PTH123
            pass

    episode(see)


@small
def it_keeps_all_episodes() -> None:
    episode(lambda original, one: original(one) or seen.append(one))


@small
def it_keeps_all_steps() -> None:
    step(lambda original, one: original(one) or seen.append(one))


@small
def it_needs_a_metric_of_one_algorithm() -> None:
    step(lambda original, one: original(one) or one.metrics["entropy"])


@small
def a_reward_is_positive() -> None:
    step(lambda original, one: original(one) or math.log(one.metrics["reward_mean"]))


@small
def steps_grow() -> None:
    def see(original: Any, one: StepSummary) -> None:
        if seen and one.step <= seen[-1]:
            raise ValueError(one.step)
        seen.append(one.step)
        original(one)

    step(see)


@small
def it_begins_with_step_1() -> None:
    numbers: list[int] = []

    def see(original: Any, one: StepSummary) -> None:
        numbers.append(one.step)
        if numbers[0] != 1:
            raise ValueError(one.step)
        original(one)

    step(see)


@small
def a_step_is_sent_while_the_server_waits() -> None:
    def see(original: Any, one: StepSummary) -> None:
        original(one)
        with socket.socket() as connection:
            connection.connect_ex(("127.0.0.1", 9))

    step(see)


@small
def it_sleeps_between_steps() -> None:
    step(lambda original, one: original(one) or time.sleep(0.001))


@small
def it_runs_a_program() -> None:
    def see(original: Any, now: ServerState) -> None:
        original(now)
        subprocess.run([sys.executable, "-c", ""], check=True)

    state(see)


@small
def the_queue_fills() -> None:
    """With what nothing takes out: the server stops at the 101st step."""

    def see(_: Any, one: StepSummary) -> None:
        watching.waiting.put(one)

    step(see)
