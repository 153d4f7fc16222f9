"""A tiny model, and vLLM servers for it. Servers take half a minute to start, so tests share them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from ajet_engine_vllm.engine import VllmEngine
from ajet_engine_vllm.settings import VllmEngineSettings
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers, WorkerContext
from ajet_core.protocol.run import ModelConfig
from tests.backends import backend_python
from tests.served_models import Models

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

# Long enough that a completion is not over before this process has its turn, however busy the machine is.
CONTEXT = 2048
SETTINGS = {
    "device": "cpu",
    "kv_cache_gib": 1,
    "threads": 1,
    "max_num_seqs": 32,
    "boot_timeout_seconds": 600,
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.write(tmp_path_factory.mktemp("models"), CONTEXT)


@pytest.fixture(scope="session")
def python() -> str:
    return backend_python("vllm")


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> VllmEngine:
    """An engine that is not started yet."""
    options = VllmEngineSettings.model_validate({**SETTINGS, **settings})
    return VllmEngine(options, WorkerContext(run_dir, seed=3, servers=servers))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), sleep=True)
    await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
    yield engine
    await engine.close()
