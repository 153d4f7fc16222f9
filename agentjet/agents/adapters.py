"""Agent adapters of installed plugins, for the frameworks that a program uses."""

from __future__ import annotations

import functools
import logging
import sys
import threading

from agentjet.agents.route import named_agent
from ajet_core.errors import AjetError, ConfigError
from ajet_core.interfaces import AgentAdapter
from ajet_core.plugin import AgentSpec, PluginManager

_log = logging.getLogger("ajet.agents")


class Adapters:
    """Adapters by framework. Each is created once its framework is imported.

    :param plugins: the manager that the adapters are registered with; by default the plugins of
        this interpreter, without those listed in the setting ``plugins.blocked``.
    """

    def __init__(self, plugins: PluginManager | None = None) -> None:
        self._plugins = plugins
        self._lock = threading.RLock()
        self._specs: tuple[AgentSpec, ...] | None = None
        self._made: dict[str, AgentAdapter | None] = {}

    def in_use(self) -> list[AgentAdapter]:
        """Return the adapters whose framework is imported."""
        specs = self._specs if self._specs is not None else self._find()
        adapters = [self._adapter(spec) for spec in specs if _is_imported(spec.framework)]
        return [adapter for adapter in adapters if adapter is not None]

    def of(self, agent: object) -> AgentAdapter:
        """Return the adapter of an agent's framework.

        :raises ConfigError: no installed adapter accepts the agent.
        """
        for adapter in self.in_use():
            if adapter.accepts(agent):
                return adapter
        known = ", ".join(sorted(spec.name for spec in self._find())) or "none"
        kind = f"{type(agent).__module__}.{type(agent).__qualname__}"
        raise ConfigError(
            f"no agent adapter supports {kind} (installed adapters: {known}): install the "
            "adapter for the agent's framework (for example `pip install 'agentjet[langchain]'`), "
            "or put @trainable on a function that runs the agent"
        )

    def prepare(self) -> None:
        """Prepare the frameworks in use for an episode."""
        for adapter in self.in_use():
            adapter.prepare()

    def current_agent(self) -> str | None:
        """Return the current agent's name, from the first framework in use that knows it."""
        for adapter in self.in_use():
            if (name := adapter.current_agent()) is not None:
                return name
        return None

    def _find(self) -> tuple[AgentSpec, ...]:
        with self._lock:
            if self._specs is None:
                if self._plugins is None:
                    # Imported here because programs that train nothing need no settings.
                    from ajet_installation.interpreters import local_manager

                    self._plugins = local_manager()
                plugins = self._plugins
                self._specs = tuple(plugins.agent(name) for name in plugins.names("agent"))
            return self._specs

    def _adapter(self, spec: AgentSpec) -> AgentAdapter | None:
        if spec.name in self._made:
            return self._made[spec.name]
        with self._lock:
            if spec.name not in self._made:
                self._made[spec.name] = self._make(spec)
            return self._made[spec.name]

    def _make(self, spec: AgentSpec) -> AgentAdapter | None:
        """Create an adapter, or return None if its plugin is broken.

        Without an adapter, agents can still be trained, but are not told apart.

        :raises ConfigError: the adapter's settings are invalid.
        """
        from ajet_installation.component_settings import component_settings
        from ajet_installation.settings import Settings

        assert self._plugins is not None, "specs come from them"
        if spec.name in Settings().agents:
            component_settings(self._plugins, spec)
        try:
            adapter = self._plugins.create(spec, component_settings(self._plugins, spec))
            # The program may have imported the framework in the middle of an episode.
            adapter.prepare()
            return adapter
        except AjetError as error:
            _log.warning("cannot use agent adapter %s: %s", spec.name, error.message)
            return None


def _is_imported(name: str) -> bool:
    """Return whether a module is imported completely, not just partially."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


@functools.cache
def installed_adapters() -> Adapters:
    """The adapters of the installed plugins."""
    return Adapters()


def current_agent() -> str | None:
    """Return the current agent's name, as given by `agent_name` or else by its framework."""
    name = named_agent()
    return name if name is not None else installed_adapters().current_agent()
