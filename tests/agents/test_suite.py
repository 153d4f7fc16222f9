"""The suite for adapters, with one for the smallest framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
