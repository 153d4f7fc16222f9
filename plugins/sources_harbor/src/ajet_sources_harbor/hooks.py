"""Plugin hooks that register this source."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the source ``harbor``."""
    return (
        SourceSpec(
            name="harbor",
            target="ajet_sources_harbor.source:HarborSource",
            settings="ajet_sources_harbor.settings:HarborSettings",
            summary="directories of tasks of Harbor: harbor:DIRECTORY",
        ),
    )
