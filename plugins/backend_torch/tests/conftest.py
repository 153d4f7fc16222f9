"""Tiny random models and helpers to run the engine and the trainer on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
)
from transformers.utils import logging as hf_logging

from ajet_core.interfaces import WorkerContext
from ajet_core.protocol.run import ModelConfig

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "wide": lambda: Qwen2Config(
        **{**SIZES, "intermediate_size": 192}, num_key_value_heads=2, tie_word_embeddings=True
    ),
    "llama": lambda: LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES),
    "gemma": lambda: GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=32),
    # Soft caps on attention and logits, and sliding windows that a short context never leaves.
    "gemma2": lambda: Gemma2Config(
        **SIZES, num_key_value_heads=1, head_dim=32, sliding_window=512, final_logit_softcapping=2.0
    ),
    # Beyond 128 tokens all positions are rotated otherwise.
    "phi3_long": lambda: Phi3Config(
        **SIZES,
        num_key_value_heads=2,
        original_max_position_embeddings=128,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 16,
            "long_factor": [4.0] * 16,
        },
    ),
    "mistral": lambda: MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=64),
}


def write_model(path: Path, kind: str = "qwen2", seed: int = 0) -> str:
    """Save a random model of a kind; returns its directory."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(CONFIGS[kind]()).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Directory of a random model of a kind, the same for all tests."""
    made: dict[str, str] = {}

    def get(kind: str = "qwen2") -> str:
        if kind not in made:
            made[kind] = write_model(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get


@pytest.fixture
def model_dir(models: Callable[[str], str]) -> str:
    return models("qwen2")


@pytest.fixture
def context(tmp_path: Path) -> WorkerContext:
    return WorkerContext(run_dir=tmp_path / "run", seed=3)


EngineMaker = Callable[..., object]


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


def full_logprobs(
    module: torch.nn.Module, ids: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """[T - 1, vocabulary] logprobs of every next token, from one plain forward pass."""
    with torch.no_grad():
        logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


def load(path: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
