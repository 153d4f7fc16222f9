"""Graphs and swarms are trained as they are, and agents learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import program
import pytest
from strands import Agent
from strands.multiagent import GraphBuilder, Swarm

from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import AgentSuite
from ajet_testing.tutorial import run_tutorial


def graph() -> Any:
    builder = GraphBuilder()
    nameless = Agent(model=program.model, system_prompt="Name a door.", callback_handler=None)
    builder.add_node(nameless, "scout")
    builder.add_node(program.make_worker(), "work")
    builder.add_edge("scout", "work")
    return builder.build()


class TestTeams(AgentSuite):
    adapter = "strands"
    tool_errors = "told"

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return program.make_worker()

    async def test_a_graph(self, swarm: ScriptedSwarm) -> None:
        assert await self.speakers(swarm, graph(), "t500x", "t501x") == [
            "scout",
            "worker",
            "worker",
        ]

    async def test_a_swarm(self, swarm: ScriptedSwarm) -> None:
        team = Swarm([program.make_worker(), program.make_planner()])
        assert await self.speakers(swarm, team, "t510x", "t511x") == ["worker", "worker"]


@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path("README.md"), tmp_path, monkeypatch)
