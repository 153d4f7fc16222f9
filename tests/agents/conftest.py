"""The adapter of the plain framework, as if its plugin were installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ajet_core.agents import adapters
from ajet_core.testing.plugins import plugins_with


@pytest.fixture(autouse=True)
def plain_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        adapters, "PluginManager", lambda: plugins_with("plain", "tests.agents.plain")
    )
    adapters.installed_adapters.cache_clear()
    yield
    adapters.installed_adapters.cache_clear()
