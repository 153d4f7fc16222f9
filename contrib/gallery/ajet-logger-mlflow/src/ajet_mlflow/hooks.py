"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import LoggerSpec, hookimpl


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """Register the logger ``mlflow``."""
    return [
        LoggerSpec(
            name="mlflow",
            target="ajet_mlflow.logger:MlflowLogger",
            settings="ajet_mlflow.settings:MlflowLoggerSettings",
            summary="an MLflow run with metrics, evaluations and the configuration",
        )
    ]
