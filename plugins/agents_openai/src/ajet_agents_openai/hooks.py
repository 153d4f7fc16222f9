"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``openai-agents``."""
    return (
        AgentSpec(
            name="openai-agents",
            target="ajet_agents_openai.adapter:OpenAIAgentsAdapter",
            # Programs often have their own package named agents.
            framework="agents.tracing",
            summary="agents of the OpenAI Agents SDK",
        ),
    )
