"""The agent adapter: support for training agents of one framework."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from ajet_core.interfaces.context import SettingsT_co


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """The endpoint for an agent's model calls.

    :param base_url: URL of an OpenAI-compatible API, including ``/v1``.
    :param api_key: valid only for one episode, while it is open.
    :param episode_id: the id of the episode in logs.
    :param path_url: `base_url` with the key in it, for programs that read keys from variables of
        the process, which episodes share; "" if the server has no such URL.
    :param sampling: parameters for each model call, such as ``temperature``, by OpenAI's names.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str = "default"
    episode_id: str = ""
    path_url: str = field(default="", repr=False)
    sampling: Mapping[str, Any] = field(default_factory=dict)


class AgentAdapter(Generic[SettingsT_co], ABC):
    """Adapter for one agent framework.

    An adapter need not route model calls: requests are rerouted when they are sent
    (`agentjet.agents`), whichever framework makes them. It provides what requests do not show. One
    adapter serves all episodes of a process, in any thread, and keeps no state of them.

    An adapter implements `run` or `run_sync`, as the framework has it; the other is derived.
    """

    def __init__(self, settings: SettingsT_co) -> None:
        self.settings = settings

    @abstractmethod
    def accepts(self, agent: object) -> bool:
        """Return whether `agent`, any object, belongs to this framework; imports nothing."""

    @abstractmethod
    def fresh(self, agent: object) -> object:
        """Return a copy of `agent` without memory, for one episode only.

        :return: `agent` itself if it keeps no state between runs.
        """

    def current_agent(self) -> str | None:
        """Return the name of the framework's agent that is currently running, or None.

        Called where a request is sent, in the thread and context of the sender.
        """
        return None

    def prepare(self) -> None:
        """Prepare the framework for training: disable telemetry and caches of answers.

        Called before each episode whose program has imported the framework, possibly by several
        threads at once. Must not affect code that runs outside episodes.
        """

    async def run(self, agent: object, task: object) -> object:
        """Run a fresh agent on a task, and return the framework's result.

        :raises TypeError: the task cannot be passed to the agent unchanged; no model was called.
        """
        if type(self).run_sync is AgentAdapter.run_sync:
            raise NotImplementedError(f"{type(self).__name__} defines neither run nor run_sync")
        return await asyncio.to_thread(self.run_sync, agent, task)

    def run_sync(self, agent: object, task: object) -> object:
        """Run a fresh agent as `run` does, for programs without an event loop."""
        if type(self).run is AgentAdapter.run:
            raise NotImplementedError(f"{type(self).__name__} defines neither run nor run_sync")
        return asyncio.run(self.run(agent, task))
