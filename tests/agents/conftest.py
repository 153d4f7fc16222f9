"""The adapter of the plain framework, as if its plugin were installed, and a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentjet.agents import adapters
from ajet_installation import interpreters
from ajet_testing.plugins import plugins_with
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES


@pytest.fixture(autouse=True)
def plain_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        interpreters, "local_manager", lambda: plugins_with("plain", "tests.agents.plain")
    )
    adapters.installed_adapters.cache_clear()
    yield
    adapters.installed_adapters.cache_clear()


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
    """With a place for every episode of a module."""
    batch = {"tasks": 64, "episodes_per_task": 4}
    with ScriptedSwarm(tmp_path_factory.mktemp("swarm"), REPLIES, batch=batch) as swarm:
        yield swarm
