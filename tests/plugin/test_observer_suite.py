"""The suite for observers, with those of a small plugin."""

from __future__ import annotations

import pytest

from ajet_core.plugin import PluginManager
from ajet_testing.plugins import plugins_with
from ajet_testing.suites.observer_suite import ObserverSuite

pytestmark = pytest.mark.processes


@pytest.mark.processes
class TestWatching(ObserverSuite):
    plugin = "watching"

    def make_plugins(self) -> PluginManager:
        return plugins_with("watching", "tests.plugin.watching")
