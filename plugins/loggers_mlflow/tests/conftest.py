from __future__ import annotations

from pathlib import Path

import pytest

# Failures of the suites show values.
pytest.register_assert_rewrite("ajet_testing")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow with its tables, which take MLflow seconds to create."""
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file
