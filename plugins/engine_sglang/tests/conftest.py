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
# Each waits for servers to start again, and tests what `ajet_engines` does, which vLLM's tests
# cover as well.
NIGHTLY = (
    "never_served[half_loaded]",
    "never_served[stale]",
    "never_served[swapped]",
    "test_a_model_that_does_not_fit_is_told_with_what_to_set",
    "test_a_server_that_comes_up_without_a_sender_waits_for_the_next_one",
    "test_one_that_is_killed_in_the_middle_of_calls_and_again_while_it_boots",
    "test_one_that_is_killed_while_weights_change",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.endswith(NIGHTLY):
            item.add_marker(pytest.mark.nightly)


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
