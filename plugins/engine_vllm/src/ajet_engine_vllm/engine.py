"""The engine ``vllm``."""

from __future__ import annotations

import asyncio

from ajet_core.errors import EngineError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_engine_vllm.hooks import MAX_TOP_LOGPROBS, WEIGHT_CHANNELS
from ajet_engine_vllm.launch import LaunchPlan
from ajet_engine_vllm.server import VllmServer
from ajet_engine_vllm.settings import VllmEngineSettings
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


class VllmEngine(ServedEngine[VllmEngineSettings]):
    """Run vLLM servers, or attach to servers that already run at the operator's URLs.

    Started servers listen on Unix sockets that no other user can reach.
    """

    name = "vllm"
    weight_channels = WEIGHT_CHANNELS
    max_top_logprobs = MAX_TOP_LOGPROBS
    shapes = True

    def __init__(self, settings: VllmEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self.patience = settings.boot_timeout_seconds
        self.sockets = SocketDirectory("vllm")

    def replicas(self) -> int:
        """Return the configured number of replicas."""
        return self.settings.replicas

    async def launch(self, replica: Replica, model: ModelConfig) -> Launched:
        """Start a server, or wait for the one at the replica's URL.

        :raises EngineError: it did not start; the message contains the last lines of its log.
        """
        if replica.url:
            address = Address(replica.url, api_key=self.context.servers.api_key)
            limit = self.settings.boot_timeout_seconds
            return await attach(self._server(address, model), replica, limit)
        socket = self.sockets.new(replica.number)
        servers = self.context.servers
        plan = LaunchPlan(
            python=await asyncio.to_thread(
                find_python, "vllm", servers.python, self.context.run_dir
            ),
            options=self.settings,
            arguments=servers.arguments,
            model=model,
            socket=socket,
            cpu=self.settings.device == "cpu" or (self.settings.device == "auto" and not has_gpu()),
            # Servers with the same seed would give the same answers.
            seed=hash((self.context.seed, replica.number, replica.lives)) % 2**31,
        )
        server = self._server(Address("http://vllm", socket), model)
        try:
            process = await ServerProcess.start(
                f"vLLM server {replica.number}",
                plan.command(),
                environment=plan.environment(replica.number),
                log=self.context.run_dir / "logs" / f"vllm-{replica.number}.log",
                ready=server.healthy,
                timeout=self.settings.boot_timeout_seconds,
            )
        except BaseException as error:
            await server.close()
            if isinstance(error, EngineError):
                raise explained(error, "vllm") from error
            raise
        return Launched(server, process)

    def _server(self, address: Address, model: ModelConfig) -> VllmServer:
        return VllmServer(HttpClient(address), model, self.settings)

    async def sleep(self) -> None:
        """Free the servers' GPU memory.

        :raises EngineError: they were not started with sleep mode.
        """
        if not self.settings.sleep:
            raise EngineError("the vLLM servers cannot sleep: set engine.settings.sleep")
        await super().sleep()

    async def close(self) -> None:
        """Stop all servers that were started."""
        await super().close()
        self.sockets.close()
