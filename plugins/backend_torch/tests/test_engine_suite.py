"""The engine ``torch`` does what every engine must."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ajet_backend_torch import hooks
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from tiny_models import EngineMaker, full_logprobs, load, write_model

from ajet_core.interfaces import Engine, WeightUpdate, WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_testing.ascii_tokenizer import write_ascii_tokenizer
from ajet_testing.suites.engine_suite import EngineSuite


class TestTorchEngine(EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities
    reports_cached_tokens = True

    @pytest.fixture(autouse=True)
    def _weights(
        self, models: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        self.other = models("llama")
        self.paths = [models("qwen2"), write_model(tmp_path_factory.mktemp("second"), seed=9)]
        write_ascii_tokenizer(Path(self.paths[0]), self.vocab_size)
        self.damaged = tmp_path_factory.mktemp("damaged") / "model"
        shutil.copytree(self.paths[1], self.damaged)
        file = self.damaged / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])

    @pytest.fixture
    async def engine(self, make_engine: EngineMaker) -> Engine:
        return await make_engine()

    @pytest.fixture
    async def own_engine(self, make_engine: EngineMaker) -> Engine:
        return await make_engine()

    @pytest.fixture
    async def exact_engine(self, context: WorkerContext) -> AsyncIterator[Engine]:
        engine = TorchEngine(TorchEngineSettings(device="cpu"), replace(context, exact=True))
        await engine.start(ModelConfig(path=self.paths[0]))
        yield engine
        await engine.close()

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        return WeightUpdate("safetensors_dir", policy_version, self.paths[which])

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        return [
            WeightUpdate("safetensors_dir", policy_version, location)
            for location in (str(Path("/nowhere")), str(self.damaged), self.other)
        ]

    def expected_logprobs(
        self, which: int, ids: list[int], temperature: float
    ) -> list[list[float]]:
        return full_logprobs(load(self.paths[which]), ids, temperature).tolist()
