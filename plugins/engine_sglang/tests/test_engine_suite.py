"""The engine ``sglang``, with a server of SGLang, does what every engine must."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ajet_engine_sglang import hooks
from ajet_engine_sglang.engine import SglangEngine
from conftest import CONTEXT, make_engine, model_config, servers_of

from ajet_core.interfaces import Engine, WeightUpdate
from ajet_core.testing.engine_suite import EngineSuite
from tests.served_models import VOCAB, Models

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]


class TestSglangEngine(EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities
    vocab_size, max_context = VOCAB, CONTEXT

    @pytest.fixture(autouse=True)
    def _models(self, models: Models) -> None:
        self.models = models

    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, shared_engine: SglangEngine) -> Engine:
        return shared_engine

    @pytest_asyncio.fixture(loop_scope="session")
    async def own_engine(
        self, shared_engine: SglangEngine, tmp_path: Path
    ) -> AsyncIterator[Engine]:
        """Its server is the other's."""
        engine = make_engine(tmp_path, servers_of(shared_engine))
        await engine.start(model_config(self.models.paths[0]))
        yield engine
        await engine.close()

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        return WeightUpdate("safetensors_dir", policy_version, self.models.paths[which])

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        return [
            WeightUpdate("safetensors_dir", policy_version, location)
            for location in ("/nowhere", self.models.damaged, self.models.other)
        ]

    def expected_logprobs(
        self, which: int, ids: list[int], temperature: float
    ) -> list[list[float]]:
        return self.models.logprobs(which, ids, temperature)
