"""Plugin hooks that register this source."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the source ``reasoning_gym``."""
    return (
        SourceSpec(
            name="reasoning_gym",
            target="ajet_sources_reasoning_gym.source:ReasoningGymSource",
            settings="ajet_sources_reasoning_gym.settings:ReasoningGymSettings",
            summary="procedural datasets of Reasoning Gym, such as reasoning_gym:chain_sum",
        ),
    )
