"""agentjet finds the plugin and can use what it registers."""

from ajet_core.plugin import PluginManager


def test_agentjet_finds_the_plugin() -> None:
    plugins = PluginManager().plugins(load=True)
    (info,) = [info for info in plugins if info.distribution == "ajet-engine-endpoint"]
    assert info.problem == ""
    assert info.components == ("engine:endpoint",)


def test_what_it_registers_can_be_imported() -> None:
    plugins = PluginManager()
    spec = plugins.engine("endpoint")
    settings = plugins.validate_settings(spec, {})
    assert type(settings).__module__ == "ajet_endpoint.settings"
    assert plugins.load_target(spec).__name__ == "EndpointEngine"
