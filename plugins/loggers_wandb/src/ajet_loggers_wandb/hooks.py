"""Plugin hooks that register this logger."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import LoggerSpec, hookimpl


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """Register the logger ``wandb``."""
    return (
        LoggerSpec(
            name="wandb",
            target="ajet_loggers_wandb.logger:WandbLogger",
            settings="ajet_loggers_wandb.settings:WandbSettings",
            summary="a run of Weights & Biases, online or offline",
        ),
    )
