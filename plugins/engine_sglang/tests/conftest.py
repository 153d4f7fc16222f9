"""A tiny model, and an SGLang server for it. It takes a minute to start, so tests share it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.server import RESERVED
from ajet_engine_sglang.settings import SglangEngineSettings
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers, WorkerContext
from ajet_core.protocol.run import ModelConfig
from ajet_testing.suites.asking import Answer
from tests.backends import backend_python
from tests.served_models import Models
from tests.served_ports import address_of, at_port

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

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


def assert_exact(models: Models, which: int, prompt: list[int], answer: Answer) -> None:
    """Its logprobs are those of the weights."""
    rows = models.logprobs(which, prompt + answer.ids)[len(prompt) - 1 :]
    for token, logprob, row in zip(answer.ids, answer.logprobs, rows, strict=True):
        assert abs(logprob - row[token]) <= 1e-4


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.write(tmp_path_factory.mktemp("models"), CONTEXT + RESERVED)


@pytest.fixture(scope="session")
def python() -> str:
    return backend_python("sglang")


def model_config(path: str) -> ModelConfig:
    """As the files are, with the whole of the context."""
    return ModelConfig(path=path, dtype="float32", max_context=CONTEXT)


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> SglangEngine:
    """An engine that is not started yet."""
    options = SglangEngineSettings.model_validate({**SETTINGS, **settings})
    return SglangEngine(options, WorkerContext(run_dir, seed=3, servers=servers))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), sleep=True)
    await engine.start(model_config(models.paths[0]))
    yield engine
    await engine.close()
