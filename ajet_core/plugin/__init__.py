'''How to write a plugin.

A plugin is a distribution with light hooks. ``ajet plugin new`` creates one. An engine ``echo``:

``pyproject.toml``::

    [project]
    name = "ajet-echo"
    version = "1.0.0"
    dependencies = ["agentjet>=0.1,<1"]

    [project.entry-points.agentjet]
    echo = "ajet_echo.hooks"

    [project.entry-points."agentjet.hook_api"]
    "1.0" = "ajet_echo.hooks"

``ajet_echo/hooks.py``::

    from ajet_core.interfaces import EngineCapabilities
    from ajet_core.plugin import EngineSpec, hookimpl

    @hookimpl
    def ajet_register_engines():
        return [
            EngineSpec(
                name="echo",
                target="ajet_echo.engine:EchoEngine",
                settings="ajet_echo.settings:EchoSettings",
                summary="answers with the prompt",
                capabilities=EngineCapabilities(weight_channels=("safetensors_dir",)),
            )
        ]

``ajet_echo/settings.py`` (light: the server imports it to check the settings of a run)::

    from ajet_core.interfaces import ComponentSettings

    class EchoSettings(ComponentSettings):
        """:param repeat: how often the prompt is repeated."""

        repeat: int = 1

``ajet_echo/engine.py`` holds ``class EchoEngine(ajet_core.interfaces.Engine[EchoSettings])`` and
may import any package: it is imported only where the engine runs. Its ``self.settings`` is a
valid `EchoSettings`. ``ajet plugins`` shows whether the plugin is found and what it registers.

The group ``agentjet.hook_api`` names the hook API (major.minor) of the module. ``docs/plugins.md``
has the rules and all hooks, which `ajet_core.plugin.spec` defines.
'''

from ajet_core.plugin.compat import HOOK_API
from ajet_core.plugin.components import (
    AdvantageSpec,
    AgentSpec,
    CommandSpec,
    ComponentSpec,
    EngineSpec,
    JudgeSpec,
    LoggerSpec,
    MergerSpec,
    PluginInfo,
    ReaderSpec,
    SandboxSpec,
    SourceSpec,
    StoreSpec,
    TrainerSpec,
    WorldSpec,
)
from ajet_core.plugin.kinds import KindName
from ajet_core.plugin.manager import PluginManager
from ajet_core.plugin.spec import hookimpl

__all__ = [
    "HOOK_API",
    "AdvantageSpec",
    "AgentSpec",
    "CommandSpec",
    "ComponentSpec",
    "EngineSpec",
    "JudgeSpec",
    "KindName",
    "LoggerSpec",
    "MergerSpec",
    "PluginInfo",
    "PluginManager",
    "ReaderSpec",
    "SandboxSpec",
    "SourceSpec",
    "StoreSpec",
    "TrainerSpec",
    "WorldSpec",
    "hookimpl",
]
