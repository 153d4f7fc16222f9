"""Copies of agents, graphs and swarms that share no memory.

Strands has no method that copies an agent, and its constructor cannot be called again: an agent
does not keep all arguments. So the copy is made attribute by attribute. Hooks and conversation
managers are copied, because they remember. Models and tools are shared, because they are what the
program gave them to be, and often hold connections.
"""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, TypeVar

from strands import Agent
from strands.agent._agent_as_tool import _AgentAsTool
from strands.handlers.callback_handler import PrintingCallbackHandler, null_callback_handler
from strands.models import Model
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import SharedContext, Swarm
from strands.tools.registry import ToolRegistry

from ajet_core.errors import ConfigError

HANDOFF = "handoff_to_agent"
T = TypeVar("T")
LOCK = type(threading.Lock())


class Copies:
    """Copies what belongs together: what occurs twice is one object in the copy, too."""

    def __init__(self, keep_messages: bool, print_answers: bool) -> None:
        self._keep_messages = keep_messages
        self._print_answers = print_answers
        self._memo: dict[int, Any] = {}

    def copy(self, agent: object) -> object:
        """Return a copy of an agent, a graph or a swarm.

        :raises ConfigError: it has a memory that lies outside of it.
        """
        if id(agent) in self._memo:
            return self._memo[id(agent)]
        if isinstance(agent, Agent):
            return self._agent(agent)
        if isinstance(agent, Graph):
            return self._graph(agent)
        if isinstance(agent, Swarm):
            return self._swarm(agent)
        raise ConfigError(f"cannot copy a {type(agent).__name__} for each episode")

    def _agent(self, agent: Agent) -> Agent:
        _refuse_outside_memory(agent.name, agent._session_manager, agent.memory_manager)
        new = self._empty(agent)
        shared = [agent.model, agent.tracer, agent._aux_model, agent._sandbox, agent._storage]
        self._memo.update((id(one), one) for one in shared if one is not None)
        self._memo[id(agent.tool_registry)] = self._tools(agent.tool_registry)
        self._memo[id(agent.tool_caller)] = type(agent.tool_caller)(new)
        self._memo[id(agent._concurrency)] = type(agent._concurrency)(agent._concurrency.mode)
        self._memo[id(agent.event_loop_metrics)] = type(agent.event_loop_metrics)()
        if not self._keep_messages:
            self._memo[id(agent.messages)] = []
        if isinstance(agent.callback_handler, PrintingCallbackHandler) and not self._print_answers:
            self._memo[id(agent.callback_handler)] = null_callback_handler
        self._attributes(agent, new)
        new._model_state = {}
        new.trace_span = None
        if not self._keep_messages:
            new.conversation_manager.removed_message_count = 0
            if hasattr(new.conversation_manager, "_summary_message"):
                new.conversation_manager._summary_message = None
        return new

    def _tools(self, tools: ToolRegistry) -> ToolRegistry:
        new = ToolRegistry()
        for name in ("registry", "dynamic_tools"):
            copied = {key: self._tool(tool) for key, tool in getattr(tools, name).items()}
            setattr(new, name, copied)
        new.tool_config = copy.deepcopy(tools.tool_config)
        # Providers stay with the original: a registry that is dropped would stop them.
        return new

    def _tool(self, tool: Any) -> Any:
        if id(tool) not in self._memo:
            new = tool
            if isinstance(tool, _AgentAsTool):
                new = copy.copy(tool)
                new._agent = self.copy(tool._agent)  # type: ignore[assignment]
                for name, value in vars(tool).items():
                    if isinstance(value, LOCK):
                        setattr(new, name, threading.Lock())
            self._memo[id(tool)] = new
        return self._memo[id(tool)]

    def _graph(self, graph: Graph) -> Graph:
        _refuse_outside_memory(graph.id, graph.session_manager)
        new = self._empty(graph)
        self._memo[id(graph.tracer)] = graph.tracer
        nodes = {id(node): node for node in graph.nodes.values()}
        for node in nodes.values():
            self._memo[id(node)] = self._node(node, self.copy(node.executor))
        for node in nodes.values():
            self._memo[id(node)].dependencies = {
                self._memo[id(one)] for one in node.dependencies if id(one) in nodes
            }
        self._memo[id(graph.state)] = type(graph.state)()
        self._attributes(graph, new)
        return new

    def _swarm(self, swarm: Swarm) -> Swarm:
        _refuse_outside_memory(swarm.id, swarm.session_manager)
        new = self._empty(swarm)
        self._memo[id(swarm.tracer)] = swarm.tracer
        for node in swarm.nodes.values():
            executor: Any = self.copy(node.executor)
            copied = self._node(node, executor)
            copied.swarm = new
            self._memo[id(node)] = copied
            # The tool that hands over holds the swarm that it was made for.
            executor.tool_registry.registry.pop(HANDOFF, None)
        self._memo[id(swarm.shared_context)] = SharedContext()
        self._attributes(swarm, new)
        new._inject_swarm_tools()
        return new

    def _node(self, node: Any, executor: Any) -> Any:
        """Return a node that begins as the original did when its graph or swarm was made."""
        new = type(node)(node.node_id, executor)
        new._initial_messages = copy.deepcopy(node._initial_messages)
        new._initial_state = copy.deepcopy(node._initial_state)
        new._initial_model_state = copy.deepcopy(node._initial_model_state)
        if isinstance(executor, Agent):
            new.reset_executor_state()
        return new

    def _empty(self, original: T) -> T:
        new: T = object.__new__(type(original))
        self._memo[id(original)] = new
        self._memo[id(weakref.ref(original))] = weakref.ref(new)
        return new

    def _attributes(self, original: Any, new: Any) -> None:
        for name, value in vars(original).items():
            if isinstance(value, threading.Event):
                setattr(new, name, threading.Event())
            elif isinstance(value, Model):
                setattr(new, name, value)
            else:
                try:
                    setattr(new, name, copy.deepcopy(value, self._memo))
                except (TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"a {type(original).__name__} cannot be copied for each episode, because "
                        f"of {name.strip('_')}: {error}. Create it in a function instead, and "
                        "train the function"
                    ) from error


def _refuse_outside_memory(name: str, *managers: object) -> None:
    for manager in managers:
        if manager is not None:
            raise ConfigError(
                f"{name} has a {type(manager).__name__}, which would bring what an episode was "
                "told to other episodes: remove it for training"
            )
