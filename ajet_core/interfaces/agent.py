"""The agent adapter: what agentjet must know of a framework to train agents that are made with it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ajet_core.interfaces.context import ComponentSettings


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where an agent's model calls go.

    :param base_url: OpenAI-compatible, with the ``/v1``.
    :param api_key: opens one episode alone and dies with it.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str = "default"


class AgentAdapter(ABC):
    """Adapter for one agent framework.

    That model calls of an episode reach its endpoint is none of an adapter's business: requests are rerouted as they
    are sent (`agentjet.agents`), whichever framework made them. An adapter says what a request does not show. One
    object serves all episodes of a process, in any thread, and keeps nothing of them.

    An adapter implements `run` or `run_sync`, whichever is the framework's own way; the other follows from it.
    """

    def __init__(self, settings: ComponentSettings) -> None:
        self.settings = settings

    @abstractmethod
    def accepts(self, agent: object) -> bool:
        """Whether `agent` is one of this framework's; must not import the framework."""

    @abstractmethod
    def fresh(self, agent: object) -> object:
        """An agent like `agent` that no other episode sees and that remembers nothing.

        :return: `agent` itself if it keeps no state between runs.
        """

    def current_agent(self) -> str | None:
        """Name of the framework's agent in whose turn this code runs; None if there is none.

        Asked where a request is sent, in the thread and the context of the one who sends it.
        """
        return None

    def prepare(self) -> None:  # noqa: B027 - there may be nothing to do
        """Make the framework fit for training: no telemetry, no answers out of caches.

        Called before each episode in whose program the framework is imported, possibly by several threads at once.
        What runs outside episodes must be left as it is.
        """

    async def run(self, agent: object, task: object) -> object:
        """Let a fresh agent do a task, and return what the framework returns.

        :raises TypeError: the task is nothing that the agent can be told as it is; no model was asked.
        """
        if type(self).run_sync is AgentAdapter.run_sync:
            raise NotImplementedError(f"{type(self).__name__} has neither run nor run_sync")
        return await asyncio.to_thread(self.run_sync, agent, task)

    def run_sync(self, agent: object, task: object) -> object:
        """As `run`, for programs without an event loop."""
        if type(self).run is AgentAdapter.run:
            raise NotImplementedError(f"{type(self).__name__} has neither run nor run_sync")
        return asyncio.run(self.run(agent, task))
