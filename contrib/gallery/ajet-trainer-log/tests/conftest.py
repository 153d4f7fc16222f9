import pytest

# Failures of the suites show values.
pytest.register_assert_rewrite("ajet_testing")
