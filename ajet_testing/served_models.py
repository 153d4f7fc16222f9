"""Tiny random models that vLLM and SGLang can serve on a CPU, and one that is too large."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet_core.interfaces import WeightUpdate
from ajet_testing.ascii_tokenizer import write_ascii_tokenizer
from ajet_testing.suites.engine_case import EngineCase

VOCAB = 96


def write_model(path: Path, seed: int, context: int, **sizes: object) -> str:
    """Save a random model with a tokenizer, and return its directory.

    :param context: number of positions of the model.
    """
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        # A frequently sampled token, which must not end completions unless requested.
        "eos_token_id": 3,
        "pad_token_id": None,
    }
    AutoModelForCausalLM.from_config(Qwen2Config(**{**config, **sizes})).save_pretrained(path)
    write_ascii_tokenizer(path, VOCAB)
    return str(path)


def too_large(model: str | Path, path: Path) -> str:
    """Copy a model directory, with layers of hundreds of gigabytes; return the copy."""
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    # The most that is accepted.
    config["intermediate_size"] = 2**31 - 1
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@dataclass
class Models:
    """Model directories: two sets of weights of one model, a damaged one, and another model."""

    paths: list[str]
    damaged: str
    other: str

    @classmethod
    def write(cls, root: Path, context: int) -> Models:
        """Create all directories under `root`."""
        paths = [write_model(root / f"weights-{seed}", seed, context) for seed in (0, 1)]
        damaged = Path(write_model(root / "damaged", 2, context))
        file = damaged / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        other = write_model(root / "other", 3, context, intermediate_size=192)
        return cls(paths, str(damaged), other)

    def module(self, which: int) -> Any:
        """Return a module with one of the two sets of weights."""
        return AutoModelForCausalLM.from_pretrained(self.paths[which], dtype=torch.float32)

    def other_module(self) -> Any:
        """Return a module of the other model."""
        return AutoModelForCausalLM.from_pretrained(self.other)

    def logprobs(self, which: int, ids: list[int], temperature: float = 1.0) -> list[list[float]]:
        """Return [len(ids) - 1][V] logprobs computed by transformers."""
        with torch.no_grad():
            logits = (
                self.module(which)
                .eval()(torch.tensor([ids]), use_cache=False)
                .logits[0, :-1]
                .float()
            )
        rows: list[list[float]] = torch.log_softmax(logits / temperature, -1).tolist()
        return rows


class ModelsCase(EngineCase):
    """An `EngineCase` for these models; the fixture ``models`` creates them."""

    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def _models(self, models: Models) -> None:
        self.models = models

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        return WeightUpdate("safetensors_dir", policy_version, self.models.paths[which])

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        return [
            WeightUpdate("safetensors_dir", policy_version, location)
            for location in ("/nowhere", self.models.damaged, self.models.other)
        ]

    def expected_logprobs(
        self, which: int, ids: list[int], temperature: float
    ) -> list[list[float]]:
        return self.models.logprobs(which, ids, temperature)
