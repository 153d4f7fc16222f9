"""The engine ``endpoint``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.interfaces import WeightUpdate, WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_endpoint.completions import CompletionsServer
from ajet_endpoint.generate import GenerateServer
from ajet_endpoint.hooks import MAX_TOP_LOGPROBS, WEIGHT_CHANNELS
from ajet_endpoint.settings import EndpointEngineSettings
from ajet_engines.served import Address, HttpClient, Launched, Replica, ServedEngine, attach

SERVERS = {"completions": CompletionsServer, "generate": GenerateServer}


class EndpointEngine(ServedEngine[EndpointEngineSettings]):
    """Samples with the endpoints at the operator's addresses, ``servers.endpoint.urls``."""

    name = "endpoint"
    weight_channels = WEIGHT_CHANNELS
    max_top_logprobs = MAX_TOP_LOGPROBS

    def __init__(self, settings: EndpointEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self.patience = settings.boot_seconds

    async def launch(self, replica: Replica, model: ModelConfig) -> Launched:
        """Wait for the endpoint at the replica's address.

        :raises ConfigError: there is no address.
        """
        if not replica.url:
            raise ConfigError(
                "the engine 'endpoint' starts no servers: name those that run in ajet.toml, as in "
                '[servers.endpoint] urls = ["http://127.0.0.1:8000"]',
                param="servers.endpoint.urls",
            )
        http = HttpClient(Address(replica.url, api_key=self.context.servers.api_key))
        server = SERVERS[self.settings.api](http, model, loads=self.settings.weights == "load")
        return await attach(server, replica, self.settings.boot_seconds)

    async def check_update(self, update: WeightUpdate) -> None:
        """Check the tensors of an update.

        :raises ConfigError: the weights are fixed, and these are others. No setting but that one
            can help, so the run ends instead of starting the engine again.
        :raises EngineError: the weights do not exist or do not fit the model.
        """
        if self.settings.weights == "load":
            await super().check_update(update)
        elif not await asyncio.to_thread(_is_same, update.location, self._model.path):
            raise ConfigError(
                f"the engine 'endpoint' serves the model {self._model.path} and was asked for the "
                f"weights in {update.location}, but engine.settings.weights is 'fixed': set it to "
                "'load', or use a trainer that leaves the weights as they are",
                param="engine.settings.weights",
            )


def _is_same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()
