"""Engines whose SGLang servers are small."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.settings import SglangEngineSettings

from ajet_core.interfaces import ModelServers, WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_testing.served_models import Models
from ajet_testing.served_ports import address_of, at_port
from ajet_testing.suites.asking import Completion

CONTEXT = 512
SETTINGS = {
    "device": "cpu",
    "kv_tokens": 32768,
    "threads": 1,
    "max_running_requests": 32,
    "boot_timeout_seconds": 600,
}


@asynccontextmanager
async def servers_of(engine: SglangEngine) -> AsyncIterator[ModelServers]:
    """The engine's server, as an operator would name it."""
    address = address_of(engine)
    async with at_port(address.socket) as url:
        yield ModelServers(urls=(url,), api_key=address.api_key)


def assert_exact(models: Models, which: int, prompt: list[int], answer: Completion) -> None:
    """Its logprobs are those of the weights."""
    rows = models.logprobs(which, prompt + answer.ids)[len(prompt) - 1 :]
    for token, logprob, row in zip(answer.ids, answer.logprobs, rows, strict=True):
        assert abs(logprob - row[token]) <= 1e-4


def model_config(path: str) -> ModelConfig:
    """As the files are, with the whole of the context."""
    return ModelConfig(path=path, dtype="float32", max_context=CONTEXT)


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> SglangEngine:
    """An engine that is not started yet."""
    options = SglangEngineSettings.model_validate({**SETTINGS, **settings})
    return SglangEngine(options, WorkerContext(run_dir, seed=3, servers=servers))
