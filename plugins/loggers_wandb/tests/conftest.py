"""Failures of the suites show values."""

import pytest

pytest.register_assert_rewrite("ajet_testing")
