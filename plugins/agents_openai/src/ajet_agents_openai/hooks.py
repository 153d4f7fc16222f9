"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin.components import AgentSpec
from ajet_core.plugin.spec import hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """The adapter ``openai-agents``."""
    return (
        AgentSpec(
            name="openai-agents",
            target="ajet_agents_openai.adapter:OpenAIAgentsAdapter",
            # Programs have packages of their own that are called agents.
            framework="agents.tracing",
            summary="agents of the OpenAI Agents SDK",
        ),
    )
