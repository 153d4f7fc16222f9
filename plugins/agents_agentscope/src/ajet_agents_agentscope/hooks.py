"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``agentscope``."""
    return (
        AgentSpec(
            name="agentscope",
            target="ajet_agents_agentscope.adapter:AgentScopeAdapter",
            framework="agentscope",
            summary="AgentScope 2's agents",
        ),
    )
