"""The adapter passes the suite of agentjet, with a program of two agents."""

from __future__ import annotations

import program

from ajet_testing.suites.agent_suite import AgentSuite


class TestStrandsAdapter(AgentSuite):
    adapter = "strands"
    tool_errors = "told"
    traces = True

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.make_worker()
