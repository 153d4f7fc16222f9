"""Frameworks whose agents must not be run as plain functions, although they may be callable.

An agent keeps a conversation: if one object were run as a function in all episodes, they would
share it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    requires,
)
from inspect import getmodulename
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ajet_core.errors import AjetError, ConfigError, PluginError
from ajet_core.plugin import AgentSpec, PluginInfo, PluginManager
from ajet_core.plugin.discovery import describe
from ajet_core.plugin.targets import CORE_DISTRIBUTION, extras_with

EXTRAS: Mapping[str, str] = {
    "agents.tracing": "openai-agents",
    "agentscope": "agentscope",
    "autogen_agentchat": "autogen",
    "crewai": "crewai",
    "langchain_core": "langchain",
    "llama_index": "llamaindex",
    "pydantic_ai": "pydantic-ai",
    "smolagents": "smolagents",
    "google.adk": "google-adk",
    "dspy": "dspy",
    "claude_agent_sdk": "claude-agent-sdk",
}
"""The extra of agentjet that installs the adapter of a framework, by `AgentSpec.framework`."""

_ALIKE = 0.8


def is_imported(name: str) -> bool:
    """Return whether a module is imported completely, not just partially."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def refusal(
    agent: object,
    plugins: PluginManager,
    specs: Collection[AgentSpec],
    faults: Mapping[str, PluginError],
) -> AjetError | None:
    """Return why an agent that no adapter accepts must not be run as a function.

    :param specs: the adapters of the plugins that can be used.
    :param faults: what is wrong with adapters whose framework is imported, by name.
    :return: None if the object is of no known framework, or if the framework's adapter can be used
        and does not accept it.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(agent).__mro__} - {"builtins"}
    kind = f"{type(agent).__module__}.{type(agent).__qualname__}"
    used = False
    for spec in specs:
        if _package(spec.framework) in packages and is_imported(spec.framework):
            if spec.name in faults:
                return faults[spec.name]
            used = True
    if used:
        return None
    problem = _unusable(packages, plugins) or _misnamed(packages, plugins, specs)
    if problem:
        return PluginError(
            f"{kind} cannot be trained as an agent: {problem}", param="plugins.blocked"
        )
    for framework, extra in EXTRAS.items():
        if _package(framework) in packages and is_imported(framework):
            return ConfigError(
                f"{kind} is of the framework {_package(framework)}, whose agent adapter is not "
                f"installed: pip install 'agentjet[{extra}]>=0.1', or put @trainable on a function "
                "that makes the agent and runs it"
            )
    return None


def _unusable(packages: Collection[str], plugins: PluginManager) -> str:
    """Return the problem of a plugin that is made for one of the packages, "" if there is none."""
    for info in plugins.plugins(load=True):
        if info.problem and (
            _known_for(info, packages) or _is_made_for(info.distribution, packages)
        ):
            return f"{describe(info)}: {info.problem}" if info.blocked else info.problem
    return ""


def _misnamed(
    packages: Collection[str], plugins: PluginManager, specs: Collection[AgentSpec]
) -> str:
    """Return the mistake of an adapter for one of the packages that names another framework."""
    # Imported here because programs without such an adapter need no settings.
    from ajet_installation.check_plugin import can_be_imported

    for spec in specs:
        if can_be_imported(spec.framework):
            continue
        owner = next(p for p in plugins.plugins() if f"agent:{spec.name}" in p.components)
        alike = get_close_matches(_package(spec.framework), packages, n=1, cutoff=_ALIKE)
        if (alike and alike[0] != _package(spec.framework)) or _is_made_for(
            owner.distribution, packages
        ):
            return (
                f"the agent adapter {spec.name!r} of {describe(owner)} is for the module "
                f"{spec.framework!r}, which does not exist, so that it is never used: its author "
                "must correct `framework` of its AgentSpec"
            )
    return ""


def _package(module: str) -> str:
    return module.partition(".")[0]


def _known_for(info: PluginInfo, packages: Collection[str]) -> bool:
    """Return whether a distribution is this project's adapter for one of the packages."""
    extras = extras_with(info.distribution)
    return any(
        extra in extras and _package(framework) in packages and is_imported(framework)
        for framework, extra in EXTRAS.items()
    )


def _is_made_for(plugin: str, packages: Collection[str]) -> bool:
    """Return whether a plugin's distribution requires one that contains one of the packages."""
    # Requirements of agentjet itself are not agent frameworks.
    wanted = set(_requirements(plugin)) - set(_requirements(CORE_DISTRIBUTION))
    wanted.discard(canonicalize_name(CORE_DISTRIBUTION))
    return any(_contains(name, packages) for name in wanted)


def _requirements(name: str) -> Iterator[str]:
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return
    for line in lines:
        try:
            yield canonicalize_name(Requirement(line).name)
        except InvalidRequirement:
            continue


def _contains(name: str, packages: Collection[str]) -> bool:
    """Return whether one of the imported packages is of a distribution, not of the program."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return False
    root = Path(str(installed.locate_file(""))).resolve()
    # The names of modules, and of folders, which are packages.
    there = {getmodulename(file.parts[0]) or file.parts[0] for file in installed.files or ()}
    for package in there.intersection(packages):
        file = getattr(sys.modules.get(package), "__file__", None)
        if file is None or Path(file).resolve().is_relative_to(root):
            return True
    return False
