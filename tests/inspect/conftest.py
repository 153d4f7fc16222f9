"""A recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inspect.recorded import Recording, make_model_dir, sample_recording


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that holds nothing but a tokenizer."""
    return make_model_dir(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def recording(model_dir: Path) -> Recording:
    """The records of `run_dir`."""
    return sample_recording(model_dir)


@pytest.fixture(scope="session")
def run_dir(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with `recording` in its store."""
    return recording.write(tmp_path_factory.mktemp("runs") / "run")
