"""The engine ``scripted`` does what every engine must, as far as one without a model can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ajet_core.interfaces import Engine, WeightUpdate, WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_testing import hooks
from ajet_testing.scripted_engine import ScriptedEngine, ScriptedEngineSettings
from ajet_testing.suites.engine_suite import EngineSuite


class TestScriptedEngine(EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities

    @pytest.mark.skip(reason="its made-up replies have no stop token before their end")
    async def test_a_stop_token_ends_and_is_included(self, engine: Engine) -> None:
        pass

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncIterator[Engine]:
        (tmp_path / "digest").touch()
        self.directory = tmp_path
        settings = ScriptedEngineSettings(vocab_size=96, max_context=512, reply_length=600)
        engine = ScriptedEngine(settings, WorkerContext(tmp_path))
        await engine.start(ModelConfig(path="unused"))
        yield engine
        await engine.close()

    @pytest.fixture
    async def own_engine(self, engine: Engine) -> Engine:
        return engine

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        return WeightUpdate("digest_file", policy_version, str(self.directory / "digest"))

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        return [WeightUpdate("digest_file", policy_version, str(self.directory / "nothing"))]
