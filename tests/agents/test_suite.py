"""The suite for adapters, with one for the smallest framework."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentjet.agents import train, trainable
from agentjet.client import SwarmClient
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import AgentSuite
from tests.agents import plain


class TestPlainAdapter(AgentSuite):
    adapter = "plain"
    traces = True

    async def play(self, task: str) -> object:
        return await plain.play(task)

    def play_sync(self, task: str) -> object:
        return plain.play_sync(task)

    def worker(self) -> object:
        return plain.worker

    @contextmanager
    def spans(self) -> Iterator[list[str]]:
        exported: list[str] = []
        plain.exporters.append(exported.append)
        yield exported
        plain.exporters.remove(exported.append)

    async def test_a_paused_run_fails_tests_with_the_reason(self, swarm: ScriptedSwarm) -> None:
        def in_a_thread() -> None:
            with SwarmClient(swarm.url, swarm.token) as client:
                program = trainable(self.play_sync, reward=lambda _task, _result: 1.0)
                train(program, ["t502x"], client=client, progress=False)

        fails = pytest.raises(pytest.fail.Exception, match="paused: the disk is full")
        with SwarmClient(swarm.url, swarm.tokens.control) as control:
            control.pause_engine("the disk is full")
            async with asyncio.timeout(60):
                with fails:
                    await self._train(swarm, self.play, ["t500x", "t501x"])
                with fails:
                    await asyncio.to_thread(in_a_thread)
            control.resume_engine()
