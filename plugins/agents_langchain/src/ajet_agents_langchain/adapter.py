"""LangChain: everything that runs is a `Runnable`, and says in its configuration who it is."""

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
    """The adapter ``langchain``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is a `Runnable`: an agent, a graph, a chain or a model."""
        return isinstance(agent, Runnable)

    def fresh(self, agent: object) -> object:
        """The same, as a thread of its own where there is a checkpointer, which remembers by threads."""
        assert isinstance(agent, Runnable)
        if getattr(agent, "checkpointer", None) is None:
            return agent
        return agent.with_config(configurable={"thread_id": uuid4().hex})

    def current_agent(self) -> str | None:
        """The name that ``create_agent`` was given, or of the graph's node in which a model is called."""
        config = var_child_runnable_config.get()
        if config is None:
            return None
        metadata = config.get("metadata") or {}
        # The path is that of nested graphs, each as node:id.
        name = metadata.get(_AGENT) or str(metadata.get(_PATH, "")).partition(":")[0]
        return str(name) or None

    def prepare(self) -> None:
        """Let caches and LangSmith know nothing of episodes."""
        bypass_caches()
        disable_tracing()

    async def run(self, agent: object, task: object) -> object:
        """``ainvoke``; a text is a user's message to a graph."""
        assert isinstance(agent, Runnable)
        return await agent.ainvoke(_input(agent, task))

    def run_sync(self, agent: object, task: object) -> object:
        """``invoke``."""
        assert isinstance(agent, Runnable)
        return agent.invoke(_input(agent, task))


def _input(agent: Runnable[Any, Any], task: object) -> Any:
    """Graphs of agents take messages; whatever else there is takes what it takes."""
    if not _is_graph(agent) or isinstance(task, Mapping):
        return task
    if isinstance(task, BaseMessage):
        return {"messages": [task]}
    return {"messages": [{"role": "user", "content": text_of_task(task)}]}


def _is_graph(agent: object) -> bool:
    """LangGraph need not be installed."""
    return any(kind.__module__.startswith("langgraph.") for kind in type(agent).__mro__)
