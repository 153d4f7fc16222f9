"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``smolagents``."""
    return (
        AgentSpec(
            name="smolagents",
            target="ajet_agents_smolagents.adapter:SmolagentsAdapter",
            framework="smolagents",
            summary="smolagents' agents that call tools or write code",
        ),
    )
