"""Plugin hooks that register this adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``langchain``."""
    return (
        AgentSpec(
            name="langchain",
            target="ajet_agents_langchain.adapter:LangChainAdapter",
            framework="langchain_core",
            summary="LangChain 1.x agents, LangGraph graphs and chat models",
        ),
    )
