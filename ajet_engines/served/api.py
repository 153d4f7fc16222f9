"""What one kind of model server understands, in terms of the engine interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from ajet_core.interfaces import EngineInfo, EngineStats, GenerateRequest, WeightUpdate


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of a completion; as `ajet_core.interfaces.GenerateChunk`, less the version."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None


class ModelServer(ABC):
    """One running model server.

    All methods raise `ajet_engines.served.http.ServerGoneError` if it cannot be reached, and
    `ajet_core.errors.EngineError` if it fails at what it is asked.
    """

    @abstractmethod
    async def healthy(self) -> bool:
        """Whether it answers, and its engine lives."""

    @abstractmethod
    async def prepare(self) -> EngineInfo:
        """Get it to do what is asked of it later; called once, when it answers."""

    @abstractmethod
    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion, an async generator; closing it cancels the request in the server.

        It ends without a finish reason if the server was halted. The first piece comes with the first token; if
        the request is not to be streamed, the others may come together.

        :raises RequestError: the server refuses the request.
        """

    @abstractmethod
    async def halt(self) -> None:
        """End all requests, what they have sampled is sent, and begin none before `go_on`."""

    @abstractmethod
    async def go_on(self) -> None:
        """Undo `halt`."""

    @abstractmethod
    async def load(self, update: WeightUpdate) -> None:
        """Replace the weights and forget what was cached. It is halted."""

    async def checksums(self) -> dict[str, str] | None:
        """Of each tensor that was loaded last, by its name in files; None if it cannot tell. It is halted.

        As `ajet_engines.in_server.ajet_checksums.LoadedWeights.report`.
        """
        return None

    async def score(self, token_ids: list[int]) -> list[float] | None:  # noqa: ARG002
        """Logprobs of the second token to the last, at temperature 1; None if it cannot tell.

        It is halted, and is so again afterwards.

        :param token_ids: [T], T >= 2.
        :return: [T - 1].
        """
        return None

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Counters since the server started; `EngineStats.forward_seconds` and requests are counted elsewhere."""

    async def metrics(self) -> str:
        """All that it measures, in the text format of Prometheus."""
        return ""

    @abstractmethod
    async def sleep(self) -> None:
        """Free device memory. It is halted."""

    @abstractmethod
    async def wake(self) -> None:
        """Undo `sleep`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections to it."""
