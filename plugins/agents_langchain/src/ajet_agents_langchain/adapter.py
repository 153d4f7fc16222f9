"""Adapter for LangChain, where each `Runnable` names itself in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import var_child_runnable_config

from agentjet.agents import text_of_task
from ajet_agents_langchain.outside import bypass_caches, disable_tracing
from ajet_core.interfaces import AgentAdapter

_AGENT = "lc_agent_name"
_PATH = "langgraph_checkpoint_ns"


class LangChainAdapter(AgentAdapter):
    """The agent adapter ``langchain``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a `Runnable`: an agent, a graph, a chain or a model."""
        return isinstance(agent, Runnable)

    def fresh(self, agent: object) -> object:
        """Return the same object, with a new thread id if it has a checkpointer."""
        assert isinstance(agent, Runnable)
        if getattr(agent, "checkpointer", None) is None:
            return agent
        return agent.with_config(configurable={"thread_id": uuid4().hex})

    def current_agent(self) -> str | None:
        """Return the name given to ``create_agent``, or the graph node that calls the model."""
        config = var_child_runnable_config.get()
        if config is None:
            return None
        metadata = config.get("metadata") or {}
        # The path lists nested graphs, each as node:id.
        name = metadata.get(_AGENT) or str(metadata.get(_PATH, "")).partition(":")[0]
        return str(name) or None

    def prepare(self) -> None:
        """Disable caches and LangSmith in episodes."""
        bypass_caches()
        disable_tracing()

    async def run(self, agent: object, task: object) -> object:
        """Call ``ainvoke``; a graph gets a text as a user message."""
        assert isinstance(agent, Runnable)
        return await agent.ainvoke(_input(agent, task))

    def run_sync(self, agent: object, task: object) -> object:
        """Call ``invoke``, with the same input as `run`."""
        assert isinstance(agent, Runnable)
        return agent.invoke(_input(agent, task))


def _input(agent: Runnable[Any, Any], task: object) -> Any:
    """Return messages for a graph of agents, and the task itself for any other runnable."""
    if not _is_graph(agent) or isinstance(task, Mapping):
        return task
    if isinstance(task, BaseMessage):
        return {"messages": [task]}
    return {"messages": [{"role": "user", "content": text_of_task(task)}]}


def _is_graph(agent: object) -> bool:
    """Return whether it is a LangGraph graph, without importing LangGraph, which is optional."""
    return any(kind.__module__.startswith("langgraph.") for kind in type(agent).__mro__)
