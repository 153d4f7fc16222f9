"""Plugin hooks that register this source."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the source ``verifiers``."""
    return (
        SourceSpec(
            name="verifiers",
            target="ajet_sources_verifiers.source:VerifiersSource",
            settings="ajet_sources_verifiers.settings:VerifiersSettings",
            summary="environments of verifiers: verifiers:MODULE",
        ),
    )
