"""What the routes of agents need of the process that answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ajet_core.protocol import AgentRule, CallSampling
from ajet_installation.settings import ServerSettings
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.rendering.conversation import Record
from ajet_server.gateway.silence import Silence
from ajet_server.state import StateBoard

if TYPE_CHECKING:
    from ajet_server.telemetry.telemetry import Telemetry

T = TypeVar("T")


class CallableEpisodes(Protocol):
    """The open episodes that a process answers calls of."""

    async def authenticate(self, key: str) -> OpenEpisode:
        """As `EpisodeRegistry.authenticate`."""

    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T], /
    ) -> AbstractContextManager[asyncio.Task[T]]:
        """As `EpisodeRegistry.running_call`."""

    def counted(self, episode: OpenEpisode, /) -> AbstractAsyncContextManager[None]:
        """As `EpisodeRegistry.counted`."""

    async def judged(self, episode: OpenEpisode, /) -> None:
        """Report that `Session.failure` of an episode has changed."""


class ServedRun(Protocol):
    """The run whose model a process serves."""

    @property
    def model_name(self) -> str | None:
        """The name of the served model."""

    @property
    def agents(self) -> Mapping[str, str | AgentRule]:
        """What identifies the calls of agents, by agent name."""

    @property
    def evaluation_sampling(self) -> CallSampling:
        """How calls of evaluation episodes are sampled."""

    @property
    def running(self) -> bool:
        """Whether a run is active, in any state."""

    @property
    def chat(self) -> CompletionService | None:
        """Answers model calls while a run is active or reboots; None before the first boot."""


@dataclass(frozen=True, slots=True)
class ModelService:
    """Answers agents' calls, in the server or in one of its gateway processes.

    :param add_call: writes a call to the store.
    :param started_at: Unix time in seconds.
    :param silence: makes the watch that breaks the silence of a stream, after so many seconds.
    :param telemetry: exports the spans of calls; None if that is off.
    """

    settings: ServerSettings
    board: StateBoard
    episodes: CallableEpisodes
    run: ServedRun
    add_call: Record
    started_at: float
    silence: Callable[[float], Silence] = Silence
    telemetry: Telemetry | None = None
