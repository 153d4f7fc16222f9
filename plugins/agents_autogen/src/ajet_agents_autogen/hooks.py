"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``autogen``."""
    return (
        AgentSpec(
            name="autogen",
            target="ajet_agents_autogen.adapter:AutoGenAdapter",
            framework="autogen_agentchat",
            summary="agents and teams of AutoGen (autogen-agentchat)",
        ),
    )
