"""The agent adapter: makes a framework's agent use an episode's endpoint."""

from __future__ import annotations

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
    headers: dict[str, str] = field(default_factory=dict)


class AgentAdapter(ABC):
    """Adapter for one agent framework."""

    def __init__(self, settings: ComponentSettings) -> None:
        self.settings = settings

    @abstractmethod
    def accepts(self, agent: object) -> bool:
        """Whether this adapter knows how to bind `agent`; must not import the framework."""

    @abstractmethod
    def bind(self, agent: object, endpoint: ModelEndpoint) -> object:
        """A copy of `agent` whose model calls go to `endpoint`; `agent` itself stays as it is."""
