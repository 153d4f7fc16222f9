"""Classes and settings of components: imported late, checked, with errors that help."""

from __future__ import annotations

import pytest

from ajet_core.errors import ConfigError, PluginLoadError
from ajet_core.interfaces import SampleStore
from ajet_core.plugin import (
    PluginManager,
    StoreSpec,
    compat,
)
from ajet_installation.interpreters import default_manager
from tests.support.sites import Site

HOOKS = """
@hookimpl
def ajet_register_stores():
    return [StoreSpec(name="box", target="{0}", settings="box_settings:BoxSettings")]
@hookimpl
def ajet_register_commands():
    return [CommandSpec(name="box", target="{1}")]
"""
SETTINGS = """
from pydantic import BaseModel
from ajet_core.interfaces import ComponentSettings
class Inner(BaseModel):
    depth: int = 1
class BoxSettings(ComponentSettings):
    size: int = 3
    inner: Inner = Inner()
"""
STORE = """
import click
from ajet_core.interfaces import SampleStore
class Box(SampleStore):
    pass
class NoBox:
    pass
@click.command()
def run():
    pass
"""


def install(
    site: Site, target: str = "box_store:Box", command: str = "box_store:run"
) -> PluginManager:
    site.install(
        "ajet-box",
        HOOKS.format(target, command),
        files={
            "box_settings": SETTINGS,
            "box_store": STORE,
            "box_broken": "import no_such_backend",
        },
    )
    return PluginManager()


def test_the_class_is_imported_by_its_target(site: Site) -> None:
    manager = install(site)
    found = manager.load_target(manager.store("box"))
    assert issubclass(found, SampleStore)
    assert found.__name__ == "Box"


def test_a_class_of_another_kind_is_refused(site: Site) -> None:
    manager = install(site, "box_store:NoBox")
    with pytest.raises(PluginLoadError, match=r"store 'box' of plugin 'ajet-box'.*SampleStore"):
        manager.load_target(manager.store("box"))


def test_a_missing_module_names_what_to_install(site: Site) -> None:
    manager = install(site, "box_broken:Box")
    with pytest.raises(PluginLoadError, match=r"no_such_backend.*pip install --upgrade ajet-box"):
        manager.load_target(manager.store("box"))


def test_a_missing_name_is_reported(site: Site) -> None:
    manager = install(site, "box_store:Bax")
    with pytest.raises(PluginLoadError, match="module box_store has no Bax"):
        manager.load_target(manager.store("box"))


def test_a_missing_backend_names_the_extra_of_agentjet(site: Site) -> None:
    site.install(
        "agentjet-backend-torch", name="torch9", files={"torch9_engine": "import nothing9"}
    )
    site.write(
        "agentjet_backend_torch_hooks",
        "from ajet_core.plugin import StoreSpec, hookimpl\n@hookimpl\ndef ajet_register_stores():\n"
        "    return [StoreSpec(name='t9', target='torch9_engine:Store')]",
    )
    manager = PluginManager()
    with pytest.raises(PluginLoadError, match=r"pip install 'agentjet\[torch\]>=0.1'"):
        manager.load_target(manager.store("t9"))


def test_a_command_is_imported_by_its_target(site: Site) -> None:
    manager = install(site)
    assert manager.load_command(manager.command("box")).name == "run"


def test_a_command_that_is_none_is_refused(site: Site) -> None:
    manager = install(site, command="box_store:Box")
    with pytest.raises(PluginLoadError, match=r"not a click\.Command"):
        manager.load_command(manager.command("box"))


def test_settings_become_typed(site: Site) -> None:
    manager = install(site)
    settings = manager.validate_settings(manager.store("box"), {"size": 5, "inner": {"depth": 2}})
    assert settings.model_dump() == {"size": 5, "inner": {"depth": 2}}


def test_an_unknown_key_lists_the_known_ones(site: Site) -> None:
    manager = install(site)
    with pytest.raises(
        ConfigError, match=r"store\.settings\.sise: unknown key.*size, inner"
    ) as raised:
        manager.validate_settings(manager.store("box"), {"sise": 5})
    assert raised.value.param == "store.settings.sise"


def test_a_wrong_value_is_named_by_its_path_and_not_shown(site: Site) -> None:
    manager = install(site)
    with pytest.raises(ConfigError) as raised:
        manager.validate_settings(manager.store("box"), {"inner": {"depth": "hunter2"}})
    assert raised.value.param == "store.settings.inner.depth"
    assert "hunter2" not in raised.value.message


def test_settings_of_the_wrong_type_are_the_plugins_fault() -> None:
    spec = StoreSpec(name="x", target="a:B", settings="builtins:dict")
    with pytest.raises(PluginLoadError, match="ComponentSettings"):
        PluginManager(entry_points=[]).validate_settings(spec, {})


def test_a_module_that_raises_when_imported_is_reported(site: Site) -> None:
    manager = install(site, "box_crash:Box")
    site.write("box_crash", "raise OSError('driver too old')")
    with pytest.raises(PluginLoadError, match=r"store 'box' of .*OSError: driver too old"):
        manager.load_target(manager.store("box"))


def test_the_default_manager_honours_the_blocklist_of_the_settings(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site)
    monkeypatch.setenv("AJET_PLUGINS__BLOCKED", '["ajet-box"]')
    default_manager.cache_clear()
    try:
        infos = {info.name: info for info in default_manager().plugins()}
        assert infos["ajet-box"].blocked
        assert default_manager() is default_manager()
    finally:
        default_manager.cache_clear()


def test_a_plugin_with_a_deprecated_hook_works_and_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead = "since hook API 1.2: use ajet_register_engines"
    monkeypatch.setitem(compat.DEPRECATED_HOOKS, "ajet_register_stores", instead)
    install(site)
    with pytest.warns(FutureWarning, match=rf"'ajet-box' .*ajet_register_stores.*{instead}"):
        assert "box" in PluginManager().names("store")
