"""A tiny model, and an SGLang server for it. It takes a minute to start, so tests share it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.server import RESERVED
from tiny_sglang import CONTEXT, make_engine, model_config
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers
from ajet_testing.backends import backend_python
from ajet_testing.served_models import Models

torch.set_num_threads(1)
hf_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.write(tmp_path_factory.mktemp("models"), CONTEXT + RESERVED)


@pytest.fixture(scope="session")
def python() -> str:
    return backend_python("sglang")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), sleep=True)
    await engine.start(model_config(models.paths[0]))
    yield engine
    await engine.close()
