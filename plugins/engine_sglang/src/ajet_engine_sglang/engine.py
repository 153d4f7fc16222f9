"""The engine ``sglang``."""

from __future__ import annotations

import asyncio
import secrets

from ajet_core.errors import EngineError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_engine_sglang.hooks import MAX_TOP_LOGPROBS, WEIGHT_CHANNELS
from ajet_engine_sglang.launch import LaunchPlan
from ajet_engine_sglang.server import SglangServer
from ajet_engine_sglang.settings import SglangEngineSettings
from ajet_engines.served import (
    Address,
    HttpClient,
    Launched,
    Replica,
    ServedEngine,
    ServerProcess,
    SocketDirectory,
    attach,
)
from ajet_engines.served.launching import explained, find_python, has_gpu


class SglangEngine(ServedEngine[SglangEngineSettings]):
    """Run SGLang servers, or attach to servers that already run at the operator's URLs.

    Started servers listen on Unix sockets that no other user can reach, and require a key that only
    this process knows.
    """

    name = "sglang"
    weight_channels = WEIGHT_CHANNELS
    max_top_logprobs = MAX_TOP_LOGPROBS
    shapes = True

    def __init__(self, settings: SglangEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self.patience = settings.boot_timeout_seconds
        self.sockets = SocketDirectory("sglang")

    def replicas(self) -> int:
        """Return the configured number of replicas."""
        return self.settings.replicas

    async def launch(self, replica: Replica, model: ModelConfig) -> Launched:
        """Start a server, or wait for the one at the replica's URL.

        :raises EngineError: it did not start; the message contains the last lines of its log.
        """
        servers, options = self.context.servers, self.settings
        if replica.url:
            address = Address(replica.url, api_key=servers.api_key)
            server = _server(address, model, shapes=False, sleeps=options.sleep)
            return await attach(server, replica, options.boot_timeout_seconds)
        key, socket = secrets.token_urlsafe(32), self.sockets.new(replica.number)
        plan = LaunchPlan(
            python=await asyncio.to_thread(
                find_python, "sglang", servers.python, self.context.run_dir
            ),
            options=options,
            arguments=servers.arguments,
            model=model,
            socket=socket,
            cpu=options.device == "cpu" or (options.device == "auto" and not has_gpu()),
            # Servers with the same seed would give the same answers.
            seed=hash((self.context.seed, replica.number, replica.lives)) % 2**31,
        )
        server = _server(
            Address("http://sglang", socket, key), model, shapes=True, sleeps=options.sleep
        )
        try:
            process = await ServerProcess.start(
                f"SGLang server {replica.number}",
                plan.command(),
                environment=plan.environment(replica.number, key),
                log=self.context.run_dir / "logs" / f"sglang-{replica.number}.log",
                ready=server.healthy,
                timeout=options.boot_timeout_seconds,
            )
        except BaseException as error:
            await server.close()
            if isinstance(error, EngineError):
                raise explained(error, "sglang") from error
            raise
        return Launched(server, process)

    async def close(self) -> None:
        """Stop all servers that were started."""
        await super().close()
        self.sockets.close()

    async def sleep(self) -> None:
        """Free the servers' GPU memory.

        :raises EngineError: they were not started with sleep mode; nothing changes.
        """
        if not self.settings.sleep:
            raise EngineError("the SGLang servers cannot sleep: set engine.settings.sleep")
        await super().sleep()


def _server(address: Address, model: ModelConfig, *, shapes: bool, sleeps: bool) -> SglangServer:
    return SglangServer(HttpClient(address), model, shapes=shapes, sleeps=sleeps)
