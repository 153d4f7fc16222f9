"""Show values in the suite's failures, and keep CrewAI from prompts, telemetry and its home."""

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
