"""Plugin hooks that register this source."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the source ``inspect``."""
    return (
        SourceSpec(
            name="inspect",
            target="ajet_sources_inspect.source:InspectSource",
            settings="ajet_sources_inspect.settings:InspectSettings",
            summary="evals of Inspect, such as inspect:my_task.py or inspect:file.py@task",
        ),
    )
