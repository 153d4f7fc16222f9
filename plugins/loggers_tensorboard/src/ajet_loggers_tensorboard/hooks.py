"""Plugin hooks that register this logger."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import LoggerSpec, hookimpl


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """Register the logger ``tensorboard``."""
    return (
        LoggerSpec(
            name="tensorboard",
            target="ajet_loggers_tensorboard.logger:TensorBoardLogger",
            settings="ajet_loggers_tensorboard.settings:TensorBoardSettings",
            summary="event files of TensorBoard in the run directory",
        ),
    )
