"""Two real servers that are killed in all situations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from ajet_engine_vllm.engine import VllmEngine
from tiny_vllm import make_engine

from ajet_core.interfaces import ModelServers
from ajet_core.protocol import ModelConfig
from ajet_engines.served import ServedEngine
from ajet_testing.served_models import Models, ModelsCase
from ajet_testing.suites.served_suite import ServedEngineSuite

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_servers(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python), replicas=2)
    await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
    yield engine
    await engine.close()


class TestVllmReplicas(ModelsCase, ServedEngineSuite):
    metric = "vllm:generation_tokens_total"

    # To mypy, a fixture of pytest_asyncio is a function, and the suite's, one of pytest, is not.
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, two_servers: VllmEngine) -> ServedEngine:  # type: ignore[override]
        return two_servers

    def module(self, which: int) -> Any:
        return self.models.module(which)

    def other_module(self) -> Any:
        return self.models.other_module()
