"""Recorded runs."""

from __future__ import annotations

from tests.inspect.conftest import model_dir, recording, run_dir

__all__ = ["model_dir", "recording", "run_dir"]
