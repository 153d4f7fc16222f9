"""smolagents: an agent holds its conversation, and runs in the thread that calls it."""

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
    """The adapter ``smolagents``."""

    def __init__(self, settings: ComponentSettings) -> None:
        super().__init__(settings)
        # Those of asyncio are a few for all.
        self._threads = Threads()

    def accepts(self, agent: object) -> bool:
        """Whether it is an agent that takes steps, of whichever kind."""
        return isinstance(agent, MultiStepAgent)

    def fresh(self, agent: object) -> object:
        """A twin with a memory, a state and an interpreter of its own; so are the agents that it manages.

        They share tools and loggers, and models but for retries: smolagents waits for a minute and more where a server
        says that it is busy, when the SDK has already waited for as long as the server says.
        """
        assert isinstance(agent, MultiStepAgent)
        shared: dict[int, Any] = {}
        _share(agent, shared)
        twin: MultiStepAgent = copy.deepcopy(agent, shared)
        return twin

    def current_agent(self) -> str | None:
        """The agent's name, or its class if it has none."""
        return speaker()

    def prepare(self) -> None:
        """Find out whose turn it is."""
        instrument()

    async def run(self, agent: object, task: object) -> object:
        """As `run_sync`, in a thread."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, self.run_sync, agent, task)

    def run_sync(self, agent: object, task: object) -> object:
        """``run`` with the task as text, or, of a mapping, with what it says."""
        assert isinstance(agent, MultiStepAgent)
        if isinstance(task, Mapping):
            return agent.run(**task)
        return agent.run(text_of_task(task))


def _share(agent: MultiStepAgent, shared: dict[int, Any]) -> None:
    """Note what is not to be copied of an agent and those that it manages: what cannot be, and what they remember.

    The variables of an interpreter can be anything, such as modules.
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
    """A model that leaves trying again to the SDK."""
    retryer = getattr(model, "retryer", None)
    if retryer is None:
        return model
    twin = copy.copy(model)
    twin.retryer = copy.copy(retryer)
    twin.retryer.max_attempts = 1
    return twin
