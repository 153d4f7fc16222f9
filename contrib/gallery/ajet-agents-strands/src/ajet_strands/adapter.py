"""The adapter ``strands``."""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import INVALID_SPAN
from strands import Agent
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm
from strands.telemetry.tracer import Tracer

from agentjet.agents import current_route, override_method, text_of_task
from ajet_core.interfaces import AgentAdapter
from ajet_strands.copies import Copies
from ajet_strands.names import named, named_coroutine, placed, speaker
from ajet_strands.settings import StrandsAdapterSettings


class StrandsAdapter(AgentAdapter[StrandsAdapterSettings]):
    """Trains agents, graphs and swarms as they are; agentjet reroutes their requests."""

    def accepts(self, agent: object) -> bool:
        """Return whether it is an agent, a graph or a swarm."""
        return isinstance(agent, (Agent, Graph, Swarm))

    def fresh(self, agent: object) -> object:
        """Return a copy with agents of its own."""
        copies = Copies(self.settings.keep_messages, self.settings.print_answers)
        return copies.copy(agent)

    def current_agent(self) -> str | None:
        """Return the name of the agent that is running in this context."""
        return speaker.get()

    def prepare(self) -> None:
        """Name agents, and keep prompts of episodes out of traces."""
        override_method(Agent, "stream_async", named)
        override_method(Agent, "structured_output_async", named_coroutine)
        override_method(Graph, "_execute_node", placed)
        override_method(Tracer, "_start_span", untraced)

    async def run(self, agent: Any, task: object) -> object:
        """Run an agent, a graph or a swarm on the text of a task."""
        return await agent.invoke_async(text_of_task(task))


def untraced(start_span: Any) -> Any:
    """Replace the spans of episodes by one that records nothing."""

    def starts(tracer: Tracer, *args: Any, **options: Any) -> Any:
        if current_route() is None:
            return start_span(tracer, *args, **options)
        return INVALID_SPAN

    return starts
