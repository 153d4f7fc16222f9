"""A tiny model, and an SGLang server for it. It takes a minute to start, so tests share it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.server import RESERVED, SglangServer
from ajet_engine_sglang.settings import SglangEngineSettings
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers, WorkerContext
from ajet_core.protocol.run import ModelConfig
from ajet_core.testing.engine_suite import Answer
from tests.backends import backend_python

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

VOCAB = 96
CONTEXT = 512
SETTINGS = {
    "device": "cpu",
    "kv_tokens": 32768,
    "threads": 1,
    "max_running_requests": 32,
    "boot_timeout_seconds": 600,
}


def write_model(path: Path, seed: int, **sizes: object) -> str:
    """Save a random model that can be served on a CPU; returns its directory."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT + RESERVED,
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        # Sampled often, and no end of anything unless a request says so.
        "eos_token_id": 3,
        "pad_token_id": None,
    }
    AutoModelForCausalLM.from_config(Qwen2Config(**{**config, **sizes})).save_pretrained(path)
    return str(path)


@dataclass
class Models:
    """Directories: two sets of weights of one model, and what is none of it."""

    paths: list[str]
    damaged: str
    other: str

    def logprobs(self, which: int, ids: list[int], temperature: float = 1.0) -> list[list[float]]:
        """[len(ids) - 1][V] by transformers."""
        module = AutoModelForCausalLM.from_pretrained(self.paths[which], dtype=torch.float32)
        with torch.no_grad():
            logits = module.eval()(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
        found: list[list[float]] = torch.log_softmax(logits / temperature, -1).tolist()
        return found


def servers_of(engine: SglangEngine) -> ModelServers:
    """The engine's server, as an operator would name it."""
    server = engine._replicas[0].server
    assert isinstance(server, SglangServer)
    http = server._http._http
    key = http.headers["authorization"].removeprefix("Bearer ")
    return ModelServers(urls=(str(http.base_url),), api_key=key)


def assert_exact(models: Models, which: int, prompt: list[int], answer: Answer) -> None:
    """Its logprobs are those of the weights."""
    rows = models.logprobs(which, prompt + answer.ids)[len(prompt) - 1 :]
    for token, logprob, row in zip(answer.ids, answer.logprobs, rows, strict=True):
        assert abs(logprob - row[token]) <= 1e-4


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    paths = [write_model(root / f"weights-{seed}", seed) for seed in (0, 1)]
    damaged = Path(write_model(root / "damaged", 2))
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return Models(paths, str(damaged), write_model(root / "other", 3, intermediate_size=192))


@pytest.fixture(scope="session")
def python() -> str:
    return backend_python("sglang")


def model_config(path: str) -> ModelConfig:
    """As the files are, with the whole of the context."""
    return ModelConfig(path=path, dtype="float32", max_context=CONTEXT)


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> SglangEngine:
    """An engine that is not started yet."""
    options = SglangEngineSettings.model_validate({**SETTINGS, **settings})
    return SglangEngine(options, WorkerContext(run_dir, seed=3, servers=servers))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python))
    await engine.start(model_config(models.paths[0]))
    yield engine
    await engine.close()
