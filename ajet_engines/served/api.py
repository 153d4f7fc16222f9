"""The interface of one kind of model server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from ajet_core.interfaces import EngineInfo, EngineStats, GenerateRequest, WeightUpdate


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of a completion: a `ajet_core.interfaces.GenerateChunk` without version."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    cached_tokens: int | None = None


class ModelServer(ABC):
    """One running model server.

    All methods raise `ajet_engines.served.http.ServerGoneError` if the server cannot be reached,
    and `ajet_core.errors.EngineError` if a request fails.
    """

    @abstractmethod
    async def healthy(self) -> bool:
        """Return whether the server answers and its engine is alive."""

    @abstractmethod
    async def prepare(self) -> EngineInfo:
        """Prepare the server for use; called once, when it answers."""

    @abstractmethod
    def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Sample one completion, as an async generator; closing it cancels the request.

        It ends without a finish reason if the server was halted. The first piece arrives with the
        first token; if the request is not streamed, the others may arrive together.

        :raises RequestError: the server refuses the request.
        """

    @abstractmethod
    async def halt(self) -> None:
        """End all requests, sending their sampled tokens, and start none before `go_on`."""

    @abstractmethod
    async def go_on(self) -> None:
        """Undo `halt`."""

    @abstractmethod
    async def load(self, update: WeightUpdate) -> None:
        """Replace the weights and clear caches. The server is halted."""

    async def checksums(self) -> dict[str, str] | None:
        """Return checksums of the loaded tensors by name in files, or None. The server is halted.

        They are those of `ajet_engines.in_server.ajet_checksums.LoadedWeights.report`.
        """
        return None

    async def score(self, token_ids: list[int]) -> list[float] | None:  # noqa: ARG002
        """Return logprobs of the second to the last token at temperature 1; None if not supported.

        The server is halted, and must be halted afterwards too.

        :param token_ids: [T], T >= 2.
        :return: [T - 1].
        """
        return None

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Return counters since the start, without requests and `EngineStats.forward_seconds`."""

    async def metrics(self) -> str:
        """Return all metrics, in the text format of Prometheus."""
        return ""

    @abstractmethod
    async def sleep(self) -> None:
        """Free device memory. The server is halted."""

    @abstractmethod
    async def wake(self) -> None:
        """Undo `sleep`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections to it."""
