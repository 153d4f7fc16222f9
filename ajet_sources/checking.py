"""Checks of the tasks of a source, without a model: wrong graders teach what is wrong."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal

from ajet_core.interfaces import TASK_PROBES, Task, TaskProbe, TaskSource
from ajet_sources.training import checked_outcome

Fault = Literal[
    "probe_failed",
    "reference_below_maximum",
    "nop_not_below_reference",
    "junk_above_minimum",
    "not_deterministic",
    "outside_range",
]
"""What is wrong with a task:

- ``probe_failed``: the environment or its grader raised.
- ``reference_below_maximum``: the task's own solution does not get the greatest reward.
- ``nop_not_below_reference``: doing nothing gets as much as the solution, or the greatest reward.
- ``junk_above_minimum``: "I do not know", or the question itself, gets more than the least reward.
- ``not_deterministic``: the same answer got two rewards.
- ``outside_range``: a reward is outside of the source's `reward_range`.
"""

_CLOSE = 1e-9
_TRIES = 2
_KEY = re.compile(r"(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD)S?(_|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TaskFinding:
    """One thing that is wrong with a task.

    :param probe: what was scored.
    :param detail: rewards, or the error.
    """

    task_id: str
    fault: Fault
    probe: TaskProbe
    detail: str

    def __str__(self) -> str:
        return f"{self.task_id}: {self.fault} ({self.probe}): {self.detail}"


@dataclass(frozen=True, kw_only=True)
class TaskCheck:
    """The check of one task.

    :param rewards: by probe, its two rewards; without probes that the task does not have.
    :param seconds: by probe, the longer one of its two times.
    """

    task_id: str
    rewards: Mapping[TaskProbe, Sequence[float]]
    seconds: Mapping[TaskProbe, float]
    findings: Sequence[TaskFinding]


@dataclass(frozen=True, kw_only=True)
class SourceCheck:
    """The check of a source.

    :param tasks: in order.
    :param unscored: ids of tasks of which nothing could be scored without a model.
    :param without_reference: ids of tasks whose solution is not known.
    :param keys: variables like keys that graders could read, in this process or in one of theirs.
    :param hosts: addresses that were contacted while graders ran, other than this machine's.
    """

    tasks: Sequence[TaskCheck]
    unscored: Sequence[str] = ()
    without_reference: Sequence[str] = ()
    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()

    @property
    def findings(self) -> list[TaskFinding]:
        """All findings, in the order of the tasks."""
        return [finding for task in self.tasks for finding in task.findings]


@dataclass
class _Seen:
    hosts: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


_watching: _Seen | None = None
_hooked = False


async def check_source(
    source: TaskSource,
    tasks: Sequence[Task],
    *,
    concurrency: int = 8,
    timeout: float | None = None,
    on_task: Callable[[TaskCheck], object] | None = None,
) -> SourceCheck:
    """Score the solution of each task, nothing and junk, twice each.

    :param source: an open source.
    :param concurrency: tasks at once; never more than the source takes.
    :param timeout: seconds for one score, after which it counts as failed.
    """
    at_once = min(concurrency, source.capacity() or concurrency)
    places = asyncio.Semaphore(at_once)

    async def check(task: Task) -> TaskCheck:
        async with places:
            task_check = await check_task(source, task, timeout=timeout)
        if on_task is not None:
            on_task(task_check)
        return task_check

    with _watched() as seen:
        async with asyncio.TaskGroup() as group:
            checking = [group.create_task(check(task)) for task in tasks]
    checks = [one.result() for one in checking]
    tried = [
        {*task_check.rewards, *(finding.probe for finding in task_check.findings)}
        for task_check in checks
    ]
    pairs = list(zip(checks, tried, strict=True))
    return SourceCheck(
        tasks=checks,
        unscored=[task_check.task_id for task_check, probes in pairs if not probes],
        without_reference=[
            task_check.task_id
            for task_check, probes in pairs
            if probes and "reference" not in probes
        ],
        keys=sorted(seen.keys),
        hosts=sorted(seen.hosts),
    )


async def check_task(source: TaskSource, task: Task, *, timeout: float | None = None) -> TaskCheck:
    """Check one task of an open source."""
    rewards: dict[TaskProbe, list[float]] = {}
    seconds: dict[TaskProbe, float] = {}
    findings: list[TaskFinding] = []

    def note(fault: Fault, probe: TaskProbe, detail: str) -> None:
        findings.append(TaskFinding(task_id=task.id, fault=fault, probe=probe, detail=detail))

    for probe in TASK_PROBES:
        for _ in range(_TRIES):
            began = time.perf_counter()
            try:
                async with asyncio.timeout(timeout):
                    outcome = await source.probe(task, probe)
                if outcome is None:
                    break
                reward = checked_outcome(task, outcome).reward
            # A grader may raise anything; that is what is looked for.
            except Exception as error:  # noqa: BLE001
                what = f"took more than {timeout:g} s" if _is_timeout(error, timeout) else ""
                note("probe_failed", probe, what or f"{type(error).__name__}: {error}")
                break
            finally:
                took = time.perf_counter() - began
                seconds[probe] = max(seconds.get(probe, 0.0), took)
            rewards.setdefault(probe, []).append(reward)
    least, most = source.reward_range
    for probe, given in rewards.items():
        shown = " and ".join(f"{reward:g}" for reward in dict.fromkeys(given))
        if max(given) - min(given) > _CLOSE:
            note("not_deterministic", probe, shown)
        if min(given) < least - _CLOSE or max(given) > most + _CLOSE:
            note("outside_range", probe, f"{shown}, not within {least:g} to {most:g}")
        if probe == "reference" and min(given) < most - _CLOSE:
            note("reference_below_maximum", probe, f"{shown} of {most:g}")
        if probe == "nop":
            solved = min(rewards.get("reference", [most]))
            if max(given) >= solved - _CLOSE:
                note("nop_not_below_reference", probe, f"{shown}, the solution {solved:g}")
        if probe in ("unknown", "question") and max(given) > least + _CLOSE:
            note("junk_above_minimum", probe, f"{shown}, the least is {least:g}")
    scored = {probe: seconds[probe] for probe in rewards}
    return TaskCheck(task_id=task.id, rewards=rewards, seconds=scored, findings=findings)


def _is_timeout(error: Exception, timeout: float | None) -> bool:
    return timeout is not None and isinstance(error, TimeoutError)


@contextmanager
def _watched() -> Iterator[_Seen]:
    """Record what this process connects to, and the variables that graders can read."""
    global _watching, _hooked  # noqa: PLW0603 - an audit hook cannot be removed
    seen = _Seen(keys=_keys(os.environ))
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    before, _watching = _watching, seen
    try:
        yield seen
    finally:
        _watching = before


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is None:
        return
    if event == "socket.connect":
        address = arguments[1]
        host = str(address[0]) if isinstance(address, tuple) and address else ""
        if host and not _is_here(host):
            _watching.hosts.add(host)
    elif event == "subprocess.Popen" and arguments[3] is not None:
        _watching.keys |= _keys(arguments[3])


def _is_here(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _keys(environ: Mapping[Any, Any]) -> set[str]:
    return {name for name in map(os.fsdecode, environ) if _KEY.search(name)}
