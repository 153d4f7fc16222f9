"""A built-in command that is registered as those of plugins passes their suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ajet_testing.suites.command_suite import CommandSuite
from tests.inspect.recorded import make_model_dir, sample_recording

pytestmark = pytest.mark.processes


class TestExport(CommandSuite):
    command = "export"

    def arguments(self, directory: Path) -> Sequence[str]:
        run = sample_recording(make_model_dir(directory / "model")).write(directory / "run")
        return [str(run), str(directory / "samples.jsonl")]

    def failing(self, directory: Path) -> tuple[Sequence[str], str]:
        return [str(directory / "no-such-run"), str(directory / "out.jsonl")], "no-such-run"
