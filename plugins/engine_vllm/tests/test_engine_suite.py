"""The engine ``vllm``, with a server of vLLM, does what every engine must."""

from __future__ import annotations

import pytest
import pytest_asyncio
from ajet_engine_vllm import hooks
from ajet_engine_vllm.engine import VllmEngine
from ajet_engine_vllm.server import VllmServer
from tiny_vllm import CONTEXT

from ajet_core.interfaces import Engine
from ajet_testing.served_models import ModelsCase
from ajet_testing.suites.engine_suite import EngineSuite

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


class TestVllmEngine(ModelsCase, EngineSuite):
    capabilities = hooks.ajet_register_engines()[0].capabilities
    max_context = CONTEXT
    reports_cached_tokens = True

    # To mypy, a fixture of pytest_asyncio is a function, and the suite's, one of pytest, is not.
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, shared_engine: VllmEngine) -> Engine:  # type: ignore[override]
        return shared_engine

    async def test_this_server_does_all_that_servers_may_be_unable_to(self, engine: Engine) -> None:
        """Or tests of it would be passed over."""
        assert isinstance(engine, VllmEngine)
        (replica,) = engine.fleet.replicas
        assert isinstance(replica.server, VllmServer)
        assert replica.server._cuts
        assert replica.server._shapes
        assert replica.server._holds
