"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``claude-agent-sdk``."""
    return (
        AgentSpec(
            name="claude-agent-sdk",
            target="ajet_agents_claude.adapter:ClaudeAdapter",
            framework="claude_agent_sdk",
            summary="agents of the Claude Agent SDK, which runs Claude Code",
        ),
    )
