"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``dspy``."""
    return (
        AgentSpec(
            name="dspy",
            target="ajet_agents_dspy.adapter:DSPyAdapter",
            framework="dspy",
            summary="modules of DSPy",
        ),
    )
