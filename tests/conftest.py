"""What holds for all tests: their tiers, and the fixtures that several folders take."""

from __future__ import annotations

import pytest

# Failures of what tests share show values; it is not imported yet.
pytest.register_assert_rewrite("ajet_testing", "tests.support")
pytest_plugins = ["tests.support.tiers", "tests.support.fixtures"]
