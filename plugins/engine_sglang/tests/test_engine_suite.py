"""The engine ``sglang``, with a server of SGLang, does what every engine must."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ajet_engine_sglang import hooks
from ajet_engine_sglang.engine import SglangEngine
from tiny_sglang import CONTEXT, make_engine, model_config, servers_of

from ajet_core.interfaces import Engine
from ajet_testing.served_models import ModelsCase
from ajet_testing.suites.engine_suite import EngineSuite

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]


class TestSglangEngine(ModelsCase, EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities
    max_context = CONTEXT
    reports_cached_tokens = True

    # To mypy, fixtures of pytest_asyncio are functions, and the suite's, those of pytest, are not.
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, shared_engine: SglangEngine) -> Engine:  # type: ignore[override]
        return shared_engine

    @pytest_asyncio.fixture(loop_scope="session")
    async def own_engine(  # type: ignore[override]
        self, shared_engine: SglangEngine, tmp_path: Path
    ) -> AsyncIterator[Engine]:
        """Its server is the other's."""
        async with servers_of(shared_engine) as servers:
            engine = make_engine(tmp_path, servers)
            await engine.start(model_config(self.models.paths[0]))
            yield engine
            await engine.close()
