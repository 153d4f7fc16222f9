"""Adapter for smolagents, whose agents keep their conversation and run in the calling thread."""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections.abc import Mapping
from typing import Any

from smolagents import LocalPythonExecutor, MultiStepAgent

from agentjet.agents import Threads, text_of_task
from ajet_agents_smolagents.speaking import instrument, speaker
from ajet_core.interfaces import AgentAdapter, ComponentSettings


class SmolagentsAdapter(AgentAdapter):
    """The agent adapter ``smolagents``."""

    def __init__(self, settings: ComponentSettings) -> None:
        super().__init__(settings)
        # asyncio's default executor has too few threads.
        self._threads = Threads()

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a multi-step agent of any kind."""
        return isinstance(agent, MultiStepAgent)

    def fresh(self, agent: object) -> object:
        """Return a twin with its own memory, state, interpreter and managed agents.

        Twins share tools and loggers. They also share models, but without retries: smolagents
        waits a minute or more when a server reports that it is busy, although the SDK has
        already waited for as long as the server requested.
        """
        assert isinstance(agent, MultiStepAgent)
        shared: dict[int, Any] = {}
        _share(agent, shared)
        twin: MultiStepAgent = copy.deepcopy(agent, shared)
        return twin

    def current_agent(self) -> str | None:
        """Return the agent's name, or its class name if it has none."""
        return speaker()

    def prepare(self) -> None:
        """Start tracking whose turn it is."""
        instrument()

    async def run(self, agent: object, task: object) -> object:
        """Call `run_sync` in a thread."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, self.run_sync, agent, task)

    def run_sync(self, agent: object, task: object) -> object:
        """Call ``run`` with the task as text, or with the items of a mapping as arguments."""
        assert isinstance(agent, MultiStepAgent)
        if isinstance(task, Mapping):
            return agent.run(**task)
        return agent.run(text_of_task(task))


def _share(agent: MultiStepAgent, shared: dict[int, Any]) -> None:
    """Record what a copy of an agent and its managed agents shares or gets empty.

    This covers what cannot be copied, such as loggers and interpreter variables (which may be
    modules), and what must not be copied, such as memory.
    """
    for thing in (agent.logger, *agent.tools.values()):
        shared[id(thing)] = thing
    memory = shared[id(agent.memory)] = copy.copy(agent.memory)
    memory.reset()
    shared[id(agent.state)] = {}
    interpreter = getattr(agent, "python_executor", None)
    if isinstance(interpreter, LocalPythonExecutor):
        shared[id(interpreter.state)] = dict(LocalPythonExecutor([]).state)
        shared[id(interpreter.custom_tools)] = {}
    if id(agent.model) not in shared:
        shared[id(agent.model)] = _patient(agent.model)
    for managed in agent.managed_agents.values():
        _share(managed, shared)


def _patient(model: Any) -> Any:
    """Return a model without retries, which are left to the SDK."""
    retryer = getattr(model, "retryer", None)
    if retryer is None:
        return model
    twin = copy.copy(model)
    twin.retryer = copy.copy(retryer)
    twin.retryer.max_attempts = 1
    return twin
