"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``google-adk``."""
    return (
        AgentSpec(
            name="google-adk",
            target="ajet_agents_adk.adapter:ADKAdapter",
            # google is a package of many distributions.
            framework="google.adk",
            summary="agents of Google's Agent Development Kit",
        ),
    )
