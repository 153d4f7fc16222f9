"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``crewai``."""
    return (
        AgentSpec(
            name="crewai",
            target="ajet_agents_crewai.adapter:CrewAIAdapter",
            framework="crewai",
            summary="crews and agents of CrewAI",
        ),
    )
