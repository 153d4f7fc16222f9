"""Agent adapters of installed plugins, for the frameworks that a program uses."""

from __future__ import annotations

import functools
import logging
import threading

from agentjet.agents.frameworks import is_imported, refusal
from agentjet.agents.isolation import IsolatedAdapter
from agentjet.agents.route import named_agent
from ajet_core.errors import AjetError, ConfigError, PluginError
from ajet_core.interfaces import AgentAdapter
from ajet_core.plugin import AgentSpec, PluginManager

_log = logging.getLogger("ajet.agents")


class Adapters:
    """Adapters by framework. Each is created once its framework is imported.

    An exception of an adapter is raised as one error that names its plugin and version. An adapter
    that cannot be created or prepared is not used, which is logged once: programs of its framework
    can still be trained, but its agents are not told apart, and an agent object is refused.

    :param plugins: the manager that the adapters are registered with; by default the plugins of
        this interpreter, without those listed in the setting ``plugins.blocked``.
    """

    def __init__(self, plugins: PluginManager | None = None) -> None:
        self._plugins = plugins
        self._lock = threading.RLock()
        self._specs: tuple[AgentSpec, ...] | None = None
        self._made: dict[str, IsolatedAdapter | None] = {}
        self._faults: dict[str, PluginError] = {}

    def in_use(self) -> list[AgentAdapter]:
        """Return the adapters whose framework is imported."""
        return [adapter for _, adapter in self._in_use()]

    def find(self, agent: object) -> AgentAdapter | None:
        """Return the adapter that accepts an agent; None if it is of no known framework.

        :raises PluginError: the adapter of the agent's framework cannot be used.
        :raises ConfigError: the adapter of the agent's framework is not installed.
        """
        faults: dict[str, PluginError] = {}
        for spec, adapter in self._in_use():
            try:
                if adapter.accepts(agent):
                    return adapter
            except PluginError as error:
                faults[spec.name] = error
        specs = self._find()
        assert self._plugins is not None, "specs come from them"
        refused = refusal(agent, self._plugins, specs, {**self._faults, **faults})
        if refused is not None:
            raise refused
        for fault in faults.values():
            _log.warning("%s", fault.message)
        return None

    def of(self, agent: object) -> AgentAdapter:
        """Return the adapter of an agent's framework.

        :raises PluginError: the adapter of the agent's framework cannot be used.
        :raises ConfigError: no installed adapter accepts the agent.
        """
        if (adapter := self.find(agent)) is not None:
            return adapter
        known = ", ".join(sorted(spec.name for spec in self._find())) or "none"
        kind = f"{type(agent).__module__}.{type(agent).__qualname__}"
        raise ConfigError(
            f"no agent adapter supports {kind} (installed adapters: {known}): install the "
            "adapter for the agent's framework (for example `"
            "pip install 'agentjet[langchain]>=0.1'`), "
            "or put @trainable on a function that runs the agent"
        )

    def prepare(self) -> None:
        """Prepare the frameworks in use for an episode.

        :raises PluginError: an adapter that could be prepared before can no longer be.
        """
        for adapter in self.in_use():
            adapter.prepare()

    def current_agent(self) -> str | None:
        """Return the current agent's name, from the first framework in use that knows it."""
        for adapter in self.in_use():
            if (name := adapter.current_agent()) is not None:
                return name
        return None

    def _in_use(self) -> list[tuple[AgentSpec, IsolatedAdapter]]:
        specs = self._specs if self._specs is not None else self._find()
        usable = [(spec, self._adapter(spec)) for spec in specs if is_imported(spec.framework)]
        return [(spec, adapter) for spec, adapter in usable if adapter is not None]

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

    def _adapter(self, spec: AgentSpec) -> IsolatedAdapter | None:
        if spec.name in self._made:
            return self._made[spec.name]
        with self._lock:
            if spec.name not in self._made:
                self._made[spec.name] = self._make(spec)
            return self._made[spec.name]

    def _make(self, spec: AgentSpec) -> IsolatedAdapter | None:
        """Create an adapter, or return None if its plugin is broken.

        :raises ConfigError: the adapter's settings are invalid.
        """
        from ajet_installation.component_settings import component_settings
        from ajet_installation.settings import Settings

        assert self._plugins is not None, "specs come from them"
        if spec.name in Settings().agents:
            component_settings(self._plugins, spec)
        try:
            target = self._plugins.load_target(spec)
            settings = component_settings(self._plugins, spec)
            adapter = IsolatedAdapter.create(target, settings, spec, self._plugins)
            # The program may have imported the framework in the middle of an episode.
            adapter.prepare()
            return adapter
        except AjetError as error:
            _log.warning(
                "cannot use agent adapter %s, so that its agents are not told apart, and its "
                "framework's telemetry and caches are not turned off: %s",
                spec.name,
                error.message,
            )
            self._faults[spec.name] = (
                error if isinstance(error, PluginError) else PluginError(error.message)
            )
            return None


@functools.cache
def installed_adapters() -> Adapters:
    """The adapters of the installed plugins."""
    return Adapters()


def current_agent() -> str | None:
    """Return the current agent's name, as given by `agent_name` or else by its framework."""
    name = named_agent()
    return name if name is not None else installed_adapters().current_agent()
