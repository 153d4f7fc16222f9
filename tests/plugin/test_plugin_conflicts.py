"""Two plugins that claim the same name: nobody wins by accident, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ajet_cli.main import BUILT_IN
from ajet_core.errors import PluginConflictError
from ajet_core.plugin import PluginManager
from ajet_core.plugin.kinds import RESERVED_COMMANDS
from tests.support.sites import Site

ENGINES = """
@hookimpl
def ajet_register_engines():
    return [
        EngineSpec(name=name, target="nowhere:Engine", capabilities=CHANNELS)
        for name in ("quick", "{0}")
    ]
"""


@pytest.fixture
def rivals(site: Site) -> Site:
    site.install("ajet-one", ENGINES.format("first"), version="1.0")
    # Named like the component: that gives it no better right to the name.
    site.install("ajet-two", ENGINES.format("second"), version="2.0", name="quick")
    return site


def test_a_component_of_two_plugins_is_a_conflict_that_names_both(rivals: Site) -> None:
    with pytest.raises(PluginConflictError) as raised:
        PluginManager().engine("quick")
    assert "(distribution ajet-one 1.0)" in raised.value.message
    assert "(distribution ajet-two 2.0)" in raised.value.message
    assert 'plugins.blocked in ajet.toml to ["ajet-one"] or ["quick"]' in raised.value.message


def test_the_other_components_of_both_plugins_go_on_working(rivals: Site) -> None:
    manager = PluginManager()
    assert manager.engine("first").name == "first"
    assert manager.engine("second").name == "second"
    names = manager.names("engine")
    assert {"first", "second"} <= set(names)
    assert "quick" not in names


def test_both_plugins_show_the_conflict(rivals: Site) -> None:
    infos = {info.distribution: info for info in PluginManager().plugins(load=True)}
    assert "engine 'quick' is registered by" in infos["ajet-one"].problem
    assert "engine 'quick' is registered by" in infos["ajet-two"].problem
    assert infos["agentjet"].problem == ""


def test_blocking_one_plugin_ends_the_conflict(rivals: Site) -> None:
    assert PluginManager(blocked=["ajet-one"]).engine("quick").name == "quick"


def test_one_name_may_be_used_for_different_kinds(site: Site) -> None:
    site.install("ajet-one", ENGINES.format("first"))
    site.install(
        "ajet-two",
        "@hookimpl\ndef ajet_register_stores():\n"
        "    return [StoreSpec(name='quick', target='a:B')]",
    )
    manager = PluginManager()
    assert (manager.engine("quick").name, manager.store("quick").target) == ("quick", "a:B")


@pytest.fixture
def namesakes(site: Site) -> Site:
    site.install("ajet-one", ENGINES.format("same"), name="same", version="1.0")
    site.install("ajet-two", ENGINES.format("same"), name="same", version="2.0")
    site.install("ajet-good", ENGINES.format("good"))
    return site


def test_two_distributions_with_one_plugin_name_are_a_conflict(
    namesakes: Site, imported: Callable[[], set[str]]
) -> None:
    manager = PluginManager()
    with pytest.raises(PluginConflictError, match=r"ajet-one 1\.0 and ajet-two 2\.0"):
        manager.engine("same")
    assert manager.engine("good").name == "good"
    assert imported() == {"ajet_good_hooks"}


def test_blocking_one_distribution_leaves_its_namesake(namesakes: Site) -> None:
    manager = PluginManager(blocked=["same@ajet-two"])
    assert manager.engine("same").name == "same"


def test_a_plugin_cannot_replace_a_built_in_command(site: Site) -> None:
    site.install(
        "ajet-cmd",
        "@hookimpl\ndef ajet_register_commands():\n"
        "    return [CommandSpec(name=n, target='a:b') for n in ('serve', 'extra')]",
    )
    manager = PluginManager()
    names = manager.names("command")
    assert "extra" in names
    assert "serve" not in names
    with pytest.raises(PluginConflictError, match=r"'ajet' \(distribution agentjet"):
        manager.command("serve")


def test_the_reserved_names_are_those_of_the_built_in_commands() -> None:
    assert set(BUILT_IN) == RESERVED_COMMANDS
