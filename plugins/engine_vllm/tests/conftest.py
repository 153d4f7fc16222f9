"""A tiny model, and vLLM servers for it. Servers take half a minute to start, so tests share them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from ajet_engine_vllm.engine import VllmEngine
from ajet_engine_vllm.settings import VllmEngineSettings
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import ModelServers, WorkerContext
from ajet_core.protocol.run import ModelConfig
from tests.backends import backend_python

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

VOCAB = 96
# Long enough that a completion is not over before this process has its turn, however busy the machine is.
CONTEXT = 2048
SETTINGS = {
    "device": "cpu",
    "kv_cache_gib": 1,
    "threads": 1,
    "max_num_seqs": 32,
    "boot_timeout_seconds": 600,
}


def write_model(path: Path, seed: int, **sizes: object) -> str:
    """Save a random model that vLLM's attention on the CPU can serve; returns its directory."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
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
    return backend_python("vllm")


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> VllmEngine:
    """An engine that is not started yet."""
    options = VllmEngineSettings.model_validate({**SETTINGS, **settings})
    return VllmEngine(options, WorkerContext(run_dir, seed=3, servers=servers))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    """One server."""
    engine = make_engine(tmp_path_factory.mktemp("run"), ModelServers(python=python))
    await engine.start(ModelConfig(path=models.paths[0], dtype="float32"))
    yield engine
    await engine.close()
