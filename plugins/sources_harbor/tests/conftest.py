"""Failures of the suite show values; a source over the tasks beside this file."""

import pytest

pytest.register_assert_rewrite("ajet_testing")
