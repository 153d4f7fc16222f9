"""Tiny random models, and what they say of a text."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
)

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


EngineMaker = Callable[..., Awaitable[TorchEngine]]


def pairwise(**factors: Sequence[object]) -> pytest.MarkDecorator:
    """All combinations of three or more factors; every second is nightly.

    Those of the other half have every value of a factor with every value of each other.
    """
    combinations = itertools.product(*(enumerate(values) for values in factors.values()))
    cases = []
    for one in combinations:
        marks = [pytest.mark.nightly] if sum(place for place, _ in one) % 2 else []
        cases.append(pytest.param(*(value for _, value in one), marks=marks))
    return pytest.mark.parametrize(list(factors), cases)


def full_logprobs(
    module: torch.nn.Module, ids: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """[T - 1, vocabulary] logprobs of every next token, from one plain forward pass."""
    with torch.no_grad():
        logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


def load(path: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
