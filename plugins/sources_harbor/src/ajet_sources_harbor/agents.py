"""Harbor's agents, with the endpoint of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.trial.config import AgentConfig

from ajet_core.errors import ConfigError
from ajet_core.interfaces import ModelEndpoint
from ajet_exec import filled, load_profiles
from ajet_sources_harbor.environment import url_inside
from ajet_sources_harbor.settings import HarborSettings

WITHOUT_MODEL = frozenset({"oracle", "nop"})
_TERMINUS = frozenset({"terminus-2"})
_PROFILES = {"claude-code": "anthropic", "gemini-cli": "gemini", "openhands": "openhands"}
_PROVIDERS = {"anthropic": "anthropic/{model}", "gemini": "google/{model}"}
_MODEL_INFO = {
    "max_input_tokens": 32768,
    "max_output_tokens": 4096,
    "input_cost_per_token": 0.0,
    "output_cost_per_token": 0.0,
}


def named(agent: str) -> dict[str, str]:
    """Return how `AgentConfig` names an agent."""
    return {"import_path": agent} if ":" in agent else {"name": agent}


def is_installed(agent: str) -> bool:
    """Return whether an agent is a program in the environment, rather than code of this process.

    :raises ConfigError: there is no such agent.
    """
    try:
        kind = AgentFactory.get_agent_class_from_config(AgentConfig(**named(agent)))
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(f"Harbor has no agent {agent!r}: {error}", param="agent") from error
    return issubclass(kind, BaseInstalledAgent)


def check_profile(settings: HarborSettings) -> None:
    """Check that the profile exists.

    :raises ConfigError: it does not.
    """
    if _profile(settings) not in load_profiles():
        raise ConfigError(f"there is no profile {settings.profile!r}", param="profile")


def agent_config(settings: HarborSettings, episode: ModelEndpoint) -> AgentConfig:
    """Return the configuration of the agent of an episode.

    The endpoint and the key are in variables of the agent's phases or, for agents in this process,
    in options. The verifier gets neither.
    """
    agent = settings.agent
    model = settings.model or _PROVIDERS.get(_profile(settings), "openai/{model}")
    name = filled(model, {"model": episode.model})
    options: dict[str, Any] = {}
    environ: dict[str, str] = {}
    if agent in _TERMINUS:
        options = _terminus_options(episode)
    else:
        boxed = settings.environment == "sandbox" and is_installed(agent)
        base_url = url_inside(episode.base_url) if boxed else episode.base_url
        environ = _environ(settings, episode, base_url)
    return AgentConfig(
        **named(agent),
        model_name=name,
        kwargs=_merged(options, settings.agent_options),
        env={**environ, **settings.agent_environ},
    )


def _profile(settings: HarborSettings) -> str:
    return settings.profile or _PROFILES.get(settings.agent, "litellm")


def _environ(settings: HarborSettings, episode: ModelEndpoint, base_url: str) -> dict[str, str]:
    values = {
        "base_url": base_url,
        "root_url": base_url.removesuffix("/v1"),
        "api_key": episode.api_key,
        "model": episode.model,
        "home": "/root",
    }
    profile = load_profiles()[_profile(settings)]
    return {name: filled(text, values) for name, text in profile.environ.items()}


def _terminus_options(episode: ModelEndpoint) -> dict[str, Any]:
    sampling = dict(episode.sampling)
    return {
        "api_base": episode.base_url,
        "temperature": sampling.pop("temperature", None),
        "llm_kwargs": {"api_key": episode.api_key},
        "llm_call_kwargs": sampling,
        "model_info": _MODEL_INFO,
        # It would install asciinema.
        "record_terminal_session": False,
    }


def _merged(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options; where both are mappings, their entries."""
    result = dict(options)
    for name, value in given.items():
        old = result.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[name] = {**old, **value}
        else:
            result[name] = value
    return result
