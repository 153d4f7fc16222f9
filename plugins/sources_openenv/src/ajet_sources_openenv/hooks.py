"""Plugin hooks that register this source."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the source ``openenv``."""
    return (
        SourceSpec(
            name="openenv",
            target="ajet_sources_openenv.source:OpenEnvSource",
            settings="ajet_sources_openenv.settings:OpenEnvSettings",
            summary="environments of OpenEnv at a URL, such as openenv:http://localhost:8000",
        ),
    )
