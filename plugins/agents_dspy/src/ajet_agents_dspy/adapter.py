"""Adapter for DSPy, whose modules have no names and whose answers come from a cache."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Mapping
from typing import Any

import dspy

from agentjet.agents import Threads, text_of_task
from ajet_agents_dspy.calling import instrument
from ajet_agents_dspy.naming import current_module
from ajet_core.interfaces import AgentAdapter, ComponentSettings


class DSPyAdapter(AgentAdapter):
    """The agent adapter ``dspy``."""

    def __init__(self, settings: ComponentSettings) -> None:
        super().__init__(settings)
        # asyncio's default executor has too few threads.
        self._threads = Threads()

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a module."""
        return isinstance(agent, dspy.Module)

    def fresh(self, agent: object) -> object:
        """Return a copy with its own modules and state, and without their histories.

        Demonstrations and instructions that an optimizer has chosen are copied.
        """
        assert isinstance(agent, dspy.Module)
        twin = agent.deepcopy()
        for _, module in twin.named_sub_modules(dspy.Module):
            module.history = []
        return twin

    def current_agent(self) -> str | None:
        """Return the place of the running module in the program, such as ``planner``."""
        return current_module()

    def prepare(self) -> None:
        """Turn off caches and histories in episodes, and let calls follow them."""
        instrument()

    async def run(self, agent: object, task: object) -> object:
        """Call ``acall``; a module that has only ``forward`` runs in a thread."""
        assert isinstance(agent, dspy.Module)
        if hasattr(agent, "aforward"):
            return await agent.acall(**_inputs(agent, task))
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, self.run_sync, agent, task)

    def run_sync(self, agent: object, task: object) -> object:
        """Call the module with the task's inputs."""
        assert isinstance(agent, dspy.Module)
        return agent(**_inputs(agent, task))


def _inputs(agent: dspy.Module, task: Any) -> dict[str, Any]:
    """Return the inputs of a module: those of an example, fields of a mapping, or a text.

    :raises TypeError: the task lacks an input, or it is a text and there are several inputs.
    """
    if isinstance(task, dspy.Example):
        return dict(task.inputs())
    required, names = _fields(agent)
    if isinstance(task, Mapping):
        # Other fields are for the reward.
        if not names or not required <= task.keys():
            raise TypeError(
                f"a task with {', '.join(map(repr, task))} has not all inputs of "
                f"{type(agent).__name__}, which are {', '.join(map(repr, names)) or 'not declared'}"
            )
        return {name: task[name] for name in names if name in task}
    text = text_of_task(task)
    if len(names) != 1:
        raise TypeError(
            f"{type(agent).__name__} has the inputs {', '.join(map(repr, names)) or 'of any name'}"
            ": a task must be a dspy.Example or a mapping with them, not a text"
        )
    return {names[0]: text}


def _fields(agent: dspy.Module) -> tuple[set[str], list[str]]:
    """Return the required inputs of a module, and all that it declares."""
    for owner in (agent, getattr(agent, "predict", None)):
        fields = getattr(getattr(owner, "signature", None), "input_fields", None)
        if fields is not None:
            return set(fields), list(fields)
    # Attributes of the class: DSPy logs a warning when an instance's `forward` is read.
    method = getattr(type(agent), "forward", None) or getattr(type(agent), "aforward", None)
    if method is None:
        return set(), []
    _, *parameters = inspect.signature(method).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return {one.name for one in named if one.default is one.empty}, [one.name for one in named]
