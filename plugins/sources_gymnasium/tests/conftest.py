"""Failures of the suites show values; environments of the tests can be imported."""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("ajet_testing")
sys.path.insert(0, str(Path(__file__).parent))
