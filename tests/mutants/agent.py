"""Mutations of the adapter of the smallest framework."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agentjet.agents import text_of_task
from tests.agents import plain
from tests.agents.plain import Agent, PlainAdapter
from tests.mutants.planting import Mutants, around, put

smallest = Mutants("agent", "tests/agents/test_suite.py::TestPlainAdapter")
ALL = (smallest,)


@smallest
def the_name_of_the_agent_is_never_reset() -> None:
    @contextmanager
    def turn(name: str) -> Iterator[None]:
        plain.speaking.set(name)
        yield

    put(plain, "turn", turn)


@smallest
def the_name_of_the_agent_is_not_reset_after_an_exception() -> None:
    @contextmanager
    def turn(name: str) -> Iterator[None]:
        before = plain.speaking.set(name)
        yield
        plain.speaking.reset(before)

    put(plain, "turn", turn)


@smallest
def all_agents_have_one_name() -> None:
    around(PlainAdapter, "current_agent", lambda original, self: original(self) and "agent")


@smallest
def agents_have_no_names() -> None:
    around(PlainAdapter, "current_agent", lambda original, self: None)


@smallest
def every_agent_is_kept() -> None:
    kept: list[object] = []

    def fresh(original: Any, self: Any, agent: object) -> object:
        kept.append(original(self, agent))
        return kept[-1]

    around(PlainAdapter, "fresh", fresh)


@smallest
def all_episodes_share_an_agent() -> None:
    around(PlainAdapter, "fresh", lambda original, self, agent: agent)


@smallest
def all_episodes_share_what_was_said() -> None:
    around(PlainAdapter, "fresh", lambda original, self, agent: replace(agent))


@smallest
def prompts_of_episodes_are_exported() -> None:
    around(PlainAdapter, "prepare", lambda original, self: None)


@smallest
def tracing_is_turned_off_outside_of_episodes_too() -> None:
    around(PlainAdapter, "prepare", lambda original, self: put(plain, "is_quiet", lambda: True))


@smallest
def every_object_is_an_agent() -> None:
    around(PlainAdapter, "accepts", lambda original, self, agent: True)


@smallest
def what_the_reward_knows_is_in_the_prompt() -> None:
    async def run(original: Any, self: Any, agent: Agent, task: Any) -> object:
        return await agent.run(str(task))

    around(PlainAdapter, "run", run)


@smallest
def an_exception_is_an_answer() -> None:
    async def run(original: Any, self: Any, agent: Agent, task: Any) -> object:
        try:
            return await original(self, agent, task)
        except Exception as error:  # noqa: BLE001
            return str(error)

    around(PlainAdapter, "run", run)


@smallest
def a_failed_agent_is_asked_again() -> None:
    async def run(original: Any, self: Agent, text: str) -> object:
        for _ in range(5):
            try:
                return await original(self, text)
            except Exception:  # noqa: BLE001
                continue
        return await original(self, text)

    around(Agent, "run", run)


@smallest
def an_agent_runs_without_its_context() -> None:
    async def run(original: Any, self: Any, agent: Agent, task: Any) -> object:
        text = text_of_task(task)
        return await asyncio.get_running_loop().run_in_executor(None, agent.run_sync, text)

    around(PlainAdapter, "run", run)
