"""What is done in the states in which nobody rolls out, in words."""

from __future__ import annotations

from pathlib import Path

from ajet_core.protocol import StepSummary
from ajet_installation.settings import ServerSettings


def booting(settings: ServerSettings, run_dir: Path) -> str:
    """How long a boot may take, and where to look."""
    return (
        f"the workers load the model (at most {settings.boot_timeout_seconds:g} s); their logs are in "
        f"{run_dir / 'logs'}"
    )


def exporting(settings: ServerSettings) -> str:
    """How long an export may take."""
    return f"the model is exported (at most {settings.step_timeout_seconds:g} s)"


def training(settings: ServerSettings, step: int, last: StepSummary | None) -> str:
    """How long a step may take, and how long the last one took."""
    before = f"; the one before took {last.metrics['update_seconds']:.0f} s" if last else ""
    at_most = f"at most {settings.step_timeout_seconds:g} s"
    return f"step {step} is being trained or its weights are published ({at_most}{before})"
