"""Trainers and batches to test them with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_trl.settings import (
    TrlDistillationSettings,
    TrlSftSettings,
    TrlTrainerSettings,
)
from ajet_backend_trl.trainer import TrlDistillationTrainer, TrlSftTrainer, TrlTrainer
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
    group_advantages,
)
from ajet_torch.models import load_model

LORA = LoraConfig(rank=4, alpha=8)


def make(
    path: str,
    run_dir: Path,
    algorithm: AlgorithmConfig | None = None,
    lora: LoraConfig | None = None,
    dtype: str = "auto",
    seed: int = 3,
    **settings: object,
) -> TrlTrainer:
    """A started trainer ``trl``."""
    trainer = TrlTrainer(
        TrlTrainerSettings(**{"device": "cpu", **settings}), WorkerContext(run_dir, seed)
    )
    trainer.start(ModelConfig(path=path, lora=lora, dtype=dtype), algorithm or AlgorithmConfig())
    return trainer


def make_sft(
    path: str,
    run_dir: Path,
    algorithm: AlgorithmConfig,
    lora: LoraConfig | None = None,
    **settings: object,
) -> TrlSftTrainer:
    """A started trainer ``trl_sft``."""
    trainer = TrlSftTrainer(
        TrlSftSettings(**{"device": "cpu", **settings}), WorkerContext(run_dir, 3)
    )
    trainer.start(ModelConfig(path=path, lora=lora), algorithm)
    return trainer


def make_distillation(
    path: str,
    teacher: str,
    run_dir: Path,
    algorithm: AlgorithmConfig | None = None,
    lora: LoraConfig | None = None,
    dtype: str = "auto",
    **settings: object,
) -> TrlDistillationTrainer:
    """A started trainer ``trl_distillation``."""
    trainer = TrlDistillationTrainer(
        TrlDistillationSettings(**{"device": "cpu", "teacher": teacher, **settings}),
        WorkerContext(run_dir, 3),
    )
    trainer.start(ModelConfig(path=path, lora=lora, dtype=dtype), algorithm or AlgorithmConfig())
    return trainer


def make_torch(
    path: str, run_dir: Path, algorithm: AlgorithmConfig, lora: LoraConfig | None = None
) -> TorchTrainer:
    """A started trainer ``torch``."""
    settings = TorchTrainerSettings(device="cpu", measure_costs=False)
    trainer = TorchTrainer(settings, WorkerContext(run_dir, 3))
    trainer.start(ModelConfig(path=path, lora=lora), algorithm)
    return trainer


def module_of(trainer: Trainer) -> torch.nn.Module:
    """The model that is trained."""
    assert isinstance(trainer, TrlTrainer | TorchTrainer)
    return trainer.policy.module


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Trained weights, as copies."""
    assert isinstance(trainer, TrlTrainer | TorchTrainer)
    tensors = trainer.policy.optimiser.weight_tensors()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def load(path: str) -> torch.nn.Module:
    """The model of a directory, in float32."""
    return load_model(ModelConfig(path=path, dtype="float32"), torch.device("cpu"))


def full_logprobs(module: torch.nn.Module, ids: list[int], temperature: float) -> torch.Tensor:
    """[T - 1, vocabulary] logprobs of every next token, from one plain forward pass."""
    with torch.no_grad():
        logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


def batch(
    module: torch.nn.Module | None = None,
    rewards: tuple[float, ...] = (1.0, 0.0, 0.5, 0.0),
    step: int = 1,
    seed: int = 0,
    noise: float = 0.0,
    temperatures: tuple[float, float] = (1.0, 1.0),
    groups: str = "",
    rows: int = 1,
) -> TrainBatch:
    """Episodes of `rows` sequences of two calls; behaviour logprobs are `module`'s own plus noise.

    :param temperatures: of the first and the second call.
    :param groups: a letter for each episode; one group by default.
    """
    rng = np.random.default_rng(seed)
    names = list(groups) if groups else ["task"] * len(rewards)
    advantages = group_advantages(rewards, names, "group_std")
    trees, calls = [], []
    for episode, advantage in enumerate(advantages):
        for _ in range(rows):
            size = int(rng.integers(12, 40))
            ids = rng.integers(VOCAB, size=size).tolist()
            spans = []
            for (start, end), temperature in zip(
                ((4, 8), (size - 3, size)), temperatures, strict=True
            ):
                spans.append(TrainSpan(start, len(calls), 0, end - start))
                logprobs = [-3.0] * (end - start)
                if module is not None:
                    found = full_logprobs(module, ids, temperature)
                    logprobs = [float(found[i - 1, ids[i]]) for i in range(start, end)]
                behaviour = [lp + noise * float(rng.standard_normal()) for lp in logprobs]
                versions = [0] * (end - start)
                calls.append(
                    TrainCall(
                        f"c{len(calls)}", episode, advantage, temperature, behaviour, versions
                    )
                )
            trees.append(TrainTree([TrainSegment(-1, ids, spans)]))
    episodes = [TrainEpisode(f"e{i}", names[i], r) for i, r in enumerate(rewards)]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, sum(t.tokens for t in trees))
