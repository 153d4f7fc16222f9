"""Sandboxes by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet_core.errors import SandboxError
from ajet_core.interfaces import Sandbox
from ajet_core.plugin import PluginManager
from ajet_installation.component_settings import component_settings
from ajet_installation.interpreters import local_manager


def load_sandbox(
    name: str = "bubblewrap",
    settings: Mapping[str, Any] | None = None,
    plugins: PluginManager | None = None,
) -> Sandbox:
    """Load the sandbox registered as `name`, and remove what its killed launchers left behind.

    :param settings: override those of ``[sandboxes.NAME]`` in ``ajet.toml``.
    :param plugins: the plugin manager to use; None uses that of this process.
    :raises UnknownComponentError: no installed plugin has it; the message lists the existing ones.
    :raises PluginError: its plugin cannot be used, or several plugins register the name.
    :raises ConfigError: its settings are invalid.
    :raises SandboxError: it cannot be used on this machine; the message says what to install.
    """
    manager = plugins or local_manager()
    spec = manager.sandbox(name)
    sandbox = manager.create(spec, component_settings(manager, spec, settings))
    if problem := sandbox.problem():
        raise SandboxError(f"the sandbox {name!r} cannot be used: {problem}")
    sandbox.remove_leftovers()
    return sandbox
