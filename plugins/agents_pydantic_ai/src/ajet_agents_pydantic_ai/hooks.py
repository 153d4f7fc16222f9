"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``pydantic-ai``."""
    return (
        AgentSpec(
            name="pydantic-ai",
            target="ajet_agents_pydantic_ai.adapter:PydanticAIAdapter",
            framework="pydantic_ai",
            summary="Agents of Pydantic AI",
        ),
    )
