"""The engine ``vllm``, with a server of vLLM, does what every engine must."""

from __future__ import annotations

import pytest
import pytest_asyncio
from ajet_engine_vllm import hooks
from ajet_engine_vllm.engine import VllmEngine
from conftest import CONTEXT

from ajet_core.interfaces import Engine, WeightUpdate
from ajet_core.testing.engine_suite import EngineSuite
from tests.served_models import VOCAB, Models

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


class TestVllmEngine(EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities
    vocab_size, max_context = VOCAB, CONTEXT

    @pytest.fixture(autouse=True)
    def _models(self, models: Models) -> None:
        self.models = models

    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, shared_engine: VllmEngine) -> Engine:
        return shared_engine

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
