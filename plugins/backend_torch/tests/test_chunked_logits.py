"""Logits that are computed in chunks give the same losses and gradients, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ajet_backend_torch import logits
from ajet_backend_torch.logits import SelectedLogits
from ajet_backend_torch.losses import score_tokens
from test_trainer import batch, make, weights
from tiny_models import VOCAB, load

from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)

THREE_PLACES = 3 * VOCAB


@pytest.mark.parametrize(
    ("kind", "divides"),
    [("qwen2", True), ("llama", True), ("gpt_neox", True), ("gemma", True), ("gemma2", False)],
)
def test_models_that_change_their_logits_afterwards_are_computed_whole(
    kind: str, divides: bool, models: Callable[[str], str]
) -> None:
    selected = SelectedLogits(load(models(kind)))
    assert selected.narrows
    assert selected.divides is divides


def branching() -> TrainBatch:
    """Two calls that share a context, so that several targets have one place."""
    root = TrainSegment(-1, list(range(10, 30)), [])
    calls = [
        TrainCall("a", 0, 0.8, 0.7, [-2.0] * 6, [0] * 6),
        TrainCall("b", 0, -0.5, 0.7, [-3.0] * 4, [0] * 4),
    ]
    branches = [
        TrainSegment(0, [41, 42, 43, 44, 45, 46], [TrainSpan(0, 0, 0, 6)]),
        TrainSegment(0, [51, 52, 53, 54], [TrainSpan(0, 1, 0, 4)]),
    ]
    tree = TrainTree([root, *branches])
    return TrainBatch("b", 1, [TrainEpisode("e", "g", 1.0)], calls, [tree], tree.tokens)


@pytest.mark.parametrize(
    ("algorithm", "lora"),
    [
        (AlgorithmConfig(learning_rate=1e-2), None),
        (AlgorithmConfig(learning_rate=1e-2, kl_coef=0.1, entropy_coef=0.02, epochs=2), None),
        (AlgorithmConfig(learning_rate=1e-2, importance="truncated", minibatches=2), None),
        (AlgorithmConfig(learning_rate=1e-2, epochs=2), LoraConfig(rank=4, dropout=0.3)),
    ],
    ids=["plain", "terms", "truncated", "dropout"],
)
@pytest.mark.parametrize("shape", ["linear", "branching"])
def test_a_step_in_chunks_is_the_step(
    algorithm: AlgorithmConfig,
    lora: LoraConfig | None,
    shape: str,
    models: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = models("llama")
    trained = batch(load(path), noise=0.2) if shape == "linear" else branching()

    def step(name: str) -> tuple[dict[str, torch.Tensor], dict[str, float], list[list[float]]]:
        trainer = make(path, WorkerContext(tmp_path / name, seed=3), algorithm, lora)
        report = trainer.step(trained)
        return weights(trainer), report.metrics, report.logprobs or []

    whole, metrics, logprobs = step("whole")
    monkeypatch.setattr(logits, "CHUNK_LOGITS", THREE_PLACES)
    chunked, chunked_metrics, chunked_logprobs = step("chunked")
    for name, weight in whole.items():
        torch.testing.assert_close(chunked[name], weight, rtol=1e-4, atol=2e-5)
    for name in ("loss", "grad_norm", "entropy"):
        assert chunked_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6)
    for row, chunked_row in zip(logprobs, chunked_logprobs, strict=True):
        assert chunked_row == pytest.approx(row, abs=1e-5)


def test_no_more_logits_exist_than_those_of_a_chunk(
    models: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counted(values: torch.Tensor, *more: Any, **named: Any) -> Any:
        sizes.append(len(values))
        return score_tokens(values, *more, **named)

    path = models("llama")
    monkeypatch.setattr(logits, "CHUNK_LOGITS", THREE_PLACES)
    monkeypatch.setattr(logits, "score_tokens", counted)
    make(path, WorkerContext(tmp_path)).step(batch(load(path)))
    assert sizes
    assert max(sizes) == 3
