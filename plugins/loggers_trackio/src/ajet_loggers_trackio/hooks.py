"""Plugin hooks that register this logger."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import LoggerSpec, hookimpl


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """Register the logger ``trackio``."""
    return (
        LoggerSpec(
            name="trackio",
            target="ajet_loggers_trackio.logger:TrackioLogger",
            settings="ajet_loggers_trackio.settings:TrackioSettings",
            summary="a run of Trackio in a local database",
        ),
    )
