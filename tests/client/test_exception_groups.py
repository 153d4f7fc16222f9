"""Exceptions in groups, as task groups raise them, are named and classified."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from agentjet.client._episode import (
    Episode,
    EpisodeFailure,
    RunnerReport,
    abort_cause,
    abort_reason,
    failure_reason,
)
from ajet_core.interfaces import Task

EPISODE = Episode(
    episode_id="ep-1",
    task_id="a",
    group="a",
    kind="train",
    base_url="http://server/v1",
    api_key="secret-key",
    model="default",
    policy_version=0,
    lease_seconds=60.0,
)


class RateLimitError(Exception):
    """As an SDK raises it."""


async def raised(*errors: Exception) -> BaseExceptionGroup[Any]:
    """The group that a task group raises, within another one."""

    async def fail(error: Exception) -> None:
        raise error

    async def together(*work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in work:
                tasks.create_task(one)

    with pytest.raises(BaseExceptionGroup) as group:
        await together(together(*map(fail, errors)))
    return group.value


async def test_the_reason_is_what_the_group_holds() -> None:
    error = await raised(ValueError("no secret-key\nsecond line"), KeyError("b"))
    reason = abort_reason(error, EPISODE)
    assert reason.startswith("ValueError: no ***\nsecond line\nKeyError: 'b'\n")
    assert ", in fail\n" in reason
    assert failure_reason(error, EPISODE) == "ValueError: no ***; KeyError: 'b'"


async def test_a_report_names_it() -> None:
    error = await raised(ValueError("broken"))
    failure = EpisodeFailure(
        task=Task("a"),
        attempts=1,
        error=error,
        traceback="+-----",
        reason=failure_reason(error, None),
    )
    report: RunnerReport[Any, Any] = RunnerReport(outcomes=[], failures=[failure], elapsed=1.0)
    assert str(report).endswith("the first (task 'a') because of ValueError: broken")


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ((ValueError(), TimeoutError()), "timeout"),
        ((TimeoutError(), RateLimitError()), "rate_limit"),
        ((ValueError(), KeyError()), "error"),
    ],
)
async def test_the_cause_is_the_most_specific(errors: tuple[Exception, ...], cause: str) -> None:
    assert abort_cause(await raised(*errors)) == cause


def test_a_group_of_cancellations_is_one() -> None:
    assert abort_cause(BaseExceptionGroup("x", [asyncio.CancelledError()])) == "cancelled"


def test_other_errors_are_as_before() -> None:
    assert failure_reason(ValueError("x"), None) == "ValueError: x"
    assert abort_cause(TimeoutError()) == "timeout"
