"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``llamaindex``."""
    return (
        AgentSpec(
            name="llamaindex",
            target="ajet_agents_llamaindex.adapter:LlamaIndexAdapter",
            framework="llama_index",
            summary="LlamaIndex's agents, agent workflows and workflows",
        ),
    )
