"""Tiny random models for the trainers; what needs TRL is skipped where it is not installed."""

from __future__ import annotations

import os
from collections.abc import Callable

from tiny_models import SIZES

# Before TRL is imported: nothing is looked up, and nobody is told of the tests.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

collect_ignore_glob: list[str] = []
try:
    import trl  # noqa: F401
except ImportError:
    if os.environ.get("CI"):
        raise
    collect_ignore_glob.append("test_*.py")
else:
    import torch
    from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config
    from transformers.utils import logging as hf_logging

    torch.set_num_threads(1)
    hf_logging.disable_progress_bar()

CONFIGS = {
    "qwen2": lambda: Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False),
    "gemma2": lambda: Gemma2Config(
        **SIZES, num_key_value_heads=1, head_dim=32, sliding_window=512, final_logit_softcapping=2.0
    ),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Directory of a random model of a kind, the same for all tests."""
    made: dict[tuple[str, str], str] = {}

    def get(kind: str = "qwen2", dtype: str = "float32") -> str:
        if (kind, dtype) not in made:
            path = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            module = AutoModelForCausalLM.from_config(CONFIGS[kind]())
            module.to(getattr(torch, dtype)).save_pretrained(path)
            made[kind, dtype] = str(path)
        return made[kind, dtype]

    return get
