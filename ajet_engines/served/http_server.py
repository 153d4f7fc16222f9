"""A model server with the usual routes."""

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
    """Has ``/health`` and ``/metrics``, and can receive broadcasts.

    :cvar kind: display name of this kind of server.
    """

    kind: ClassVar[str]

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        self.receiver = WeightReceiver(self.member())

    @abstractmethod
    def member(self) -> GroupMember:
        """Return the server as a member of a broadcast group."""

    async def healthy(self) -> bool:
        """Return whether the server answers and can compute."""
        return await self.http.answers("/health")

    async def metrics(self) -> str:
        """Return the answer of ``/metrics``."""
        return await self.get("/metrics")

    async def counters(self, names: Mapping[str, str]) -> dict[str, int]:
        """Return some metrics under new names, summed over the parts of the server."""
        totals = dict.fromkeys(names.values(), 0.0)
        lines = (await self.metrics()).splitlines(keepends=True)
        # Parse only the needed lines: there are hundreds more, and the parser is slow.
        wanted = "".join(line for line in lines if line.startswith(tuple(names)))
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if (name := names.get(sample.name)) is not None:
                    totals[name] += sample.value
        return {name: int(value) for name, value in totals.items()}

    async def close(self) -> None:
        """Close the connections."""
        await self.receiver.close()
        await self.http.close()

    async def ask(
        self, path: str, body: object = None, params: Mapping[str, str] | None = None
    ) -> Any:
        """Send JSON and return the JSON of the answer.

        :raises EngineError: the server refuses.
        """
        try:
            return await self.http.post(path, body, params=params)
        except ServerRefusedError as error:
            raise EngineError(f"{self.kind} refused {path}: {error}") from error

    async def get(self, path: str) -> str:
        """Return the text of the answer.

        :raises EngineError: the server refuses.
        """
        try:
            return await self.http.get(path)
        except ServerRefusedError as error:
            raise EngineError(f"{self.kind} refused {path}: {error}") from error
