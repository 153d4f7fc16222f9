"""Tiny random models and helpers to run the engine and the trainer on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from tiny_models import EngineMaker, write_model
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_testing.worker_tasks import work_in_process

torch.set_num_threads(1)
hf_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Directory of a random model of a kind, the same for all tests."""
    made: dict[str, str] = {}

    def get(kind: str = "qwen2") -> str:
        if kind not in made:
            made[kind] = write_model(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get


@pytest.fixture(scope="module")
def worker_tasks() -> Iterator[None]:
    """Workers are tasks of the test's process, for tests in which none dies: torch is imported."""
    with pytest.MonkeyPatch.context() as patch:
        work_in_process(patch)
        yield


@pytest.fixture
def model_dir(models: Callable[[str], str]) -> str:
    return models("qwen2")


@pytest.fixture
def context(tmp_path: Path) -> WorkerContext:
    return WorkerContext(run_dir=tmp_path / "run", seed=3)


@pytest.fixture
async def make_engine(model_dir: str, context: WorkerContext) -> AsyncIterator[EngineMaker]:
    """Start engines with given settings; they are closed at the end."""
    engines: list[TorchEngine] = []

    async def make(
        path: str | None = None, max_context: int | None = None, **settings: object
    ) -> TorchEngine:
        engine = TorchEngine(TorchEngineSettings(device="cpu", **settings), context)
        engines.append(engine)
        await engine.start(ModelConfig(path=path or model_dir, max_context=max_context))
        return engine

    yield make
    for engine in engines:
        await engine.close()
