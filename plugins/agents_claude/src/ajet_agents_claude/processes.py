"""Processes of Claude Code in episodes: their environment, and whose calls they send."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions
from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

from agentjet.agents import Route, current_agent, current_route, override_method
from ajet_agents_claude.relay import Caller, relay
from ajet_agents_claude.workplace import Workplace, workplace_of

_AMBIENT = re.compile(
    r"(?i)(ANTHROPIC|CLAUDE|AWS|OTEL|XDG|VERTEX|GOOGLE|AZURE|BEDROCK)_.*|CLOUD_ML_REGION"
)
"""Variables of this process that could change where calls go, or what is reported to whom. The
program can pass them in its options, but for those below."""

_ROUTING = re.compile(
    r"(?i)ANTHROPIC_(?!(DEFAULT_|SMALL_FAST_)?.*MODEL).*"
    r"|CLAUDE_CODE_(USE|SKIP|OAUTH|API|CLIENT|PROXY|HOST)_.*|CLAUDE_CODE_ENABLE_TELEMETRY"
)
"""Variables of the options that would route or authenticate calls, or turn telemetry on."""

_OF_SDK = frozenset(
    {"CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_GIT_BASH_PATH", "CLAUDE_CODE_SDK_READS_SESSION_STATE"}
)
_OFF = {
    **dict.fromkeys(
        (
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_CUSTOM_HEADERS",
            "ANTHROPIC_UNIX_SOCKET",
            "CLAUDE_CODE_ENABLE_TELEMETRY",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_FOUNDRY",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        "",
    ),
    # A line of the system prompt that differs between sessions.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    # Features of Anthropic's own API, such as edits of the context.
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


def instrument() -> None:
    """Change how processes start in episodes; repeated calls have no effect.

    :raises ConfigError: this version of the SDK lacks the method.
    """
    override_method(SubprocessCLITransport, "connect", _connecting)


def _connecting(connect: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    async def connects(transport: Any) -> None:
        route = current_route()
        # No accessor: these are the options that the program has passed.
        options: ClaudeAgentOptions = transport._options
        if route is not None and options.model not in route.passthrough:
            place = workplace_of(route)
            place.add(transport)
            forced = _forced(options, route, place)
            env = _environ(options, forced)
            settings = place.write_settings(_settings(options, forced))
            transport._options = replace(options, env=env, settings=settings)
        await connect(transport)

    return connects


def _forced(options: ClaudeAgentOptions, route: Route, place: Workplace) -> dict[str, str]:
    """Return the variables that make a process part of an episode."""
    places = place.environ()
    if options.session_store is not None and "CLAUDE_CONFIG_DIR" in options.env:
        # The SDK has put the stored session there.
        del places["CLAUDE_CONFIG_DIR"]
    return {
        **_OFF,
        **_around_proxies(options.env),
        **places,
        "ANTHROPIC_BASE_URL": relay().url_for(Caller(route, _main(options), _others(options))),
        # Any value: calls are identified by the URL.
        "ANTHROPIC_API_KEY": "per-episode",
    }


def _environ(options: ClaudeAgentOptions, forced: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process of an episode.

    The SDK adds them to those of this process, so an unwanted one is set to nothing.
    """
    own = {name: text for name, text in options.env.items() if not _ROUTING.fullmatch(name)}
    unwanted = {name: "" for name in {*os.environ, *options.env} if _is_unwanted(name, own)}
    return {**unwanted, **own, **forced}


def _settings(options: ClaudeAgentOptions, forced: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the options, with variables that those of a project cannot replace."""
    text = (options.settings or "{}").strip()
    if not text.startswith("{"):
        text = (Path(options.cwd or "") / text).read_text(encoding="utf-8-sig")
    settings: dict[str, Any] = json.loads(text)
    own = {n: value for n, value in settings.get("env", {}).items() if not _ROUTING.fullmatch(n)}
    return {**settings, "env": {**own, **forced}}


def _is_unwanted(name: str, own: Mapping[str, str]) -> bool:
    if name in own or name in _OF_SDK:
        return False
    return _AMBIENT.fullmatch(name) is not None or _ROUTING.fullmatch(name) is not None


def _around_proxies(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which calls do not go to a proxy, which tools may need."""
    known = own.get("NO_PROXY") or own.get("no_proxy") or os.environ.get("NO_PROXY")
    known = known or os.environ.get("no_proxy") or ""
    hosts = ",".join(filter(None, [known, "127.0.0.1"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _main(options: ClaudeAgentOptions) -> str | None:
    """Return the name of the agent that a process begins with, None if it has none."""
    return current_agent() or options.extra_args.get("agent")


def _others(options: ClaudeAgentOptions) -> dict[str, str]:
    """Return the system prompts of sub-agents by name."""
    return {name: agent.prompt for name, agent in (options.agents or {}).items()}
