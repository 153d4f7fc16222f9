"""A model server whose routes are as those of most."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from prometheus_client.parser import text_string_to_metric_families

from ajet_core.errors import EngineError
from ajet_engines.collective import GroupMember, WeightReceiver
from ajet_engines.served.api import ModelServer
from ajet_engines.served.http import HttpClient, ServerRefusedError


class HttpModelServer(ModelServer):
    """Tells whether it lives by ``/health`` and what it measures by ``/metrics``; can be broadcast to.

    :cvar kind: what people call servers of this kind.
    """

    kind: ClassVar[str]

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        self.receiver = WeightReceiver(self.member())

    @abstractmethod
    def member(self) -> GroupMember:
        """The server as one of those that weights are broadcast to."""

    async def healthy(self) -> bool:
        """Whether it answers, and computes."""
        return await self.http.answers("/health")

    async def metrics(self) -> str:
        """What ``/metrics`` answers."""
        return await self.get("/metrics")

    async def counters(self, names: Mapping[str, str]) -> dict[str, int]:
        """Some of its metrics, summed over the parts of the server, by the names that they are given."""
        found = dict.fromkeys(names.values(), 0.0)
        lines = (await self.metrics()).splitlines(keepends=True)
        # There are hundreds more, and the parser takes its time.
        wanted = "".join(line for line in lines if line.startswith(tuple(names)))
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if (name := names.get(sample.name)) is not None:
                    found[name] += sample.value
        return {name: int(value) for name, value in found.items()}

    async def close(self) -> None:
        """Close the connections."""
        await self.receiver.close()
        await self.http.close()

    async def ask(
        self, path: str, body: object = None, params: Mapping[str, str] | None = None
    ) -> Any:
        """Send JSON; the JSON of the answer.

        :raises EngineError: it refuses.
        """
        try:
            return await self.http.post(path, body, params=params)
        except ServerRefusedError as error:
            raise EngineError(f"{self.kind} refused {path}: {error}") from error

    async def get(self, path: str) -> str:
        """The text of the answer.

        :raises EngineError: it refuses.
        """
        try:
            return await self.http.get(path)
        except ServerRefusedError as error:
            raise EngineError(f"{self.kind} refused {path}: {error}") from error
