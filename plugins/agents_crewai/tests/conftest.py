"""Failures of the suite show values; CrewAI tells nothing, asks nothing, and writes where nothing stays."""

import os
import tempfile

import pytest

_storage = tempfile.TemporaryDirectory(prefix="crewai-")
os.environ.update(
    CREWAI_STORAGE_DIR=_storage.name,
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_VERSION_CHECK="true",
    CREWAI_TRACING_ENABLED="false",
    CREWAI_TESTING="true",
)

pytest.register_assert_rewrite("ajet_testing")


def pytest_unconfigure() -> None:
    _storage.cleanup()
