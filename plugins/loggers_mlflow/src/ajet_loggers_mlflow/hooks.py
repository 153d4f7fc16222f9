"""Plugin hooks that register this logger."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import LoggerSpec, hookimpl


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """Register the logger ``mlflow``."""
    return (
        LoggerSpec(
            name="mlflow",
            target="ajet_loggers_mlflow.logger:MlflowLogger",
            settings="ajet_loggers_mlflow.settings:MlflowSettings",
            summary="a run of MLflow, in a local database or on a tracking server",
        ),
    )
