"""Which plugins agents' programs use."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentjet.agents.adapters import Adapters
from ajet_core.errors import ConfigError
from ajet_core.plugin import PluginManager
from ajet_installation.interpreters import local_manager
from tests.support.sites import Site

BOX = """
from ajet_core.plugin import AgentSpec

@hookimpl
def ajet_register_agents():
    return [AgentSpec(name="box", target="box:Box", framework="no_such_framework")]
"""


@pytest.fixture
def made() -> PluginManager:
    """The manager of this process as the settings say now."""
    found: PluginManager = local_manager.__wrapped__()
    return found


@pytest.mark.parametrize("blocked", [False, True])
def test_a_blocked_plugin_has_no_adapter(
    blocked: bool, site: Site, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    site.install("ajet-box", BOX)
    if blocked:
        monkeypatch.setenv("AJET_PLUGINS__BLOCKED", '["ajet-box"]')
    with pytest.raises(ConfigError) as refused:
        Adapters(request.getfixturevalue("made")).of(object())
    assert ("box" in refused.value.message.partition("installed adapters")[2]) != blocked


def test_wrong_settings_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ajet.toml").write_text("[plugins]\nblock = []\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"plugins\.block"):
        local_manager.__wrapped__()


def test_wrong_settings_of_an_adapter_are_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BOX.replace("no_such_framework", "json").replace("box:Box", "tests.agents.plain:Plain")
    site.install("ajet-box", source)
    monkeypatch.setenv("AJET_AGENTS", '{"box": {"depth": 3}}')
    with pytest.raises(ConfigError, match="depth"):
        Adapters(PluginManager()).in_use()
