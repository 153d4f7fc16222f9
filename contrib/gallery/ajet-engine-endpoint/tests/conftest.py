from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import write_model
from tiny_server import TinyServer, served

# Failures of the suites show values.
pytest.register_assert_rewrite("ajet_testing")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of the same shapes, one of other shapes, and one that is cut off."""
    root = tmp_path_factory.mktemp("models")
    first, second = (write_model(root / f"model-{seed}", seed) for seed in range(2))
    other = write_model(root / "other", 0, vocabulary=8)
    cut = write_model(root / "cut", 0)
    file = cut / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return [first, second, other, cut]


@pytest.fixture
def server(models: list[Path]) -> Iterator[TinyServer]:
    with served(models[0]) as tiny:
        yield tiny
