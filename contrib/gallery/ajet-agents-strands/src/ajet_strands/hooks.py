"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import AgentSpec, hookimpl


@hookimpl
def ajet_register_agents() -> Sequence[AgentSpec]:
    """Register the adapter ``strands``."""
    return [
        AgentSpec(
            name="strands",
            target="ajet_strands.adapter:StrandsAdapter",
            settings="ajet_strands.settings:StrandsAdapterSettings",
            summary="agents, graphs and swarms of Strands Agents",
            framework="strands",
        )
    ]
