"""A tiny model and vLLM servers for it. Tests share them: a start takes half a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from ajet_engine_vllm.engine import VllmEngine
from tiny_vllm import CONTEXT, make_engine
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers
from ajet_core.protocol import ModelConfig
from ajet_testing.backends import backend_python
from ajet_testing.served_models import Models

torch.set_num_threads(1)
hf_logging.disable_progress_bar()
# A server starts again in each.
NIGHTLY = (
    "never_served[half_loaded]",
    "never_served[swapped]",
    "test_a_model_that_fits_nowhere_is_told_with_what_to_set",
    "test_a_server_that_comes_up_without_a_sender_waits_for_the_next_one",
)
# These start four servers more. That of the suite and those of `pairs` run for each change.
NIGHTLY_FILES = ("test_attached.py", "test_replicas.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.endswith(NIGHTLY) or item.path.name in NIGHTLY_FILES:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.write(tmp_path_factory.mktemp("models"), CONTEXT)


@pytest.fixture(scope="session")
def python() -> str:
    return backend_python("vllm")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), sleep=True)
    await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
    yield engine
    await engine.close()
