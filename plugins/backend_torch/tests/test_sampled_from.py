"""Tokens that were not sampled from the policy are recorded and trained as they were sampled."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ajet_backend_torch import logits as chunking
from ajet_backend_torch import requests as engine_requests
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.restrictions import Added, Restrictions
from ajet_backend_torch.sampling import RowSampling, kept_sets, sample
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from hypothesis import given
from hypothesis import strategies as st
from test_exact import batch, conversation, sampled
from test_trainer import make
from tiny_models import VOCAB

from ajet_core.errors import TrainerError
from ajet_core.interfaces import GenerateRequest, SamplingParams, StepReport, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import (
    SampledFrom,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)

ADDED: dict[str, Any] = {
    "frequency_penalty": 0.3,
    "presence_penalty": 0.2,
    "logit_bias": ((7, 1.5), (9, -2.0)),
}


def runs(*edges: int) -> bytes:
    return struct.pack(f"<{len(edges)}I", *edges)


@given(
    seed=st.integers(0, 2**31),
    top_k=st.integers(1, 30),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
)
def test_what_is_reported_is_what_is_drawn_from(
    seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    size = 30
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, size, generator=generator)
    shaping = torch.randn(1, size, generator=generator)
    shaping[0, torch.randint(size, (9,), generator=generator)] = -torch.inf
    rows = RowSampling(
        temperature=torch.full((4,), 0.8),
        cut_rows=torch.tensor([0, 2]),
        top_p=torch.full((2,), top_p),
        top_k=torch.tensor([top_k, size]),
        min_p=torch.tensor([min_p, 0]),
        cut_width=size,
        shaped_rows=torch.tensor([2]),
        shaping=shaping,
        reported_rows=torch.tensor([0, 1, 2]),
    )
    drawn = sample(logits, rows, torch.rand(4, generator=generator, dtype=torch.float64))
    assert drawn.reported is not None
    kept = kept_sets(drawn.reported)
    assert kept[1] == b""
    finite = shaping.nan_to_num(neginf=0.0)[0].numpy()
    edges = [np.frombuffer(kept[row], "<u4").astype(np.int64) for row in (0, 2)]
    restrictions = Restrictions(
        np.array([row for row, one in zip((0, 2), edges, strict=True) if len(one)]),
        [one for one in edges if len(one)],
        [Added(np.array([2]), np.arange(size), finite[None])],
    )
    again = torch.log_softmax(restrictions(logits[:3]) / 0.8, -1)
    assert torch.equal(again, drawn.reported)
    assert restrictions.of(slice(1, 3)).kept_places.tolist() == [
        place - 1 for place in restrictions.kept_places.tolist() if place
    ]
    shares = drawn.reported.exp()
    assert (shares.gather(1, drawn.ids[:3, None]) > 0).all()
    assert int((shares[0] > 0).sum()) <= top_k
    assert (shares[0][shares[0] > 0] >= 0.999 * min_p * shares[0].max()).all()


async def test_distributions_that_are_too_large_are_not_reported(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_requests, "MOST_KEPT_BYTES", 40)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), WorkerContext(tmp_path, seed=3))
    await engine.start(ModelConfig(path=model_dir))
    options: dict[str, Any] = {"max_tokens": 30, "seed": 1, "sampled_from": True}
    small, large = (
        GenerateRequest(str(one), [1, 2], SamplingParams(**options, **one), stream=True)
        for one in ({"top_k": 1}, {"top_p": 0.8})
    )
    try:
        answers = await sampled(engine, [small, large])
    finally:
        await engine.close()
    # All of the first have one set each time, of 8 bytes, until five differ.
    assert len(answers[1].token_ids) == 30
    assert len(answers[1].sampled_from or ()) < 30


@pytest.mark.parametrize(
    "otherwise",
    [
        {"top_p": 0.7},
        {"top_k": 4},
        {"min_p": 0.3},
        {"top_p": 0.9, "top_k": 20, **ADDED},
        {"frequency_penalty": 1.0},
        {"logit_bias": ((5, 30.0),)},
    ],
    ids="-".join,
)
async def test_the_trainer_computes_what_the_engine_drew_from(
    model_dir: str, tmp_path: Path, otherwise: dict[str, Any]
) -> None:
    exact = WorkerContext(run_dir=tmp_path / "run", seed=3, exact=True)
    trainer = TorchTrainer(TorchTrainerSettings(device="cpu"), exact)
    trainer.start(ModelConfig(path=model_dir), AlgorithmConfig(learning_rate=1e-2))
    engine = TorchEngine(TorchEngineSettings(device="cpu", max_requests=8), exact)
    await engine.start(ModelConfig(path=model_dir))
    requests = [
        GenerateRequest(
            f"r{number}",
            conversation(number),
            SamplingParams(
                max_tokens=20,
                seed=number,
                temperature=(1.0, 0.7)[number % 2],
                sampled_from=True,
                **({} if number % 4 == 3 else otherwise),
            ),
        )
        for number in range(12)
    ]
    try:
        answers = await sampled(engine, requests)
    finally:
        await engine.close()
    whole = batch(1, requests, answers)
    calls = []
    for call, asked, answer in zip(whole.calls, requests, answers, strict=True):
        assert (answer.sampled_from is None) == (not asked.sampling.samples_otherwise)
        if answer.sampled_from is None:
            calls.append(call)
            continue
        params = asked.sampling
        sampled_from = replace(
            SampledFrom.of(answer.sampled_from),
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logit_bias=params.logit_bias,
        )
        assert sampled_from.logprobs != call.logprobs
        calls.append(replace(call, sampled_from=sampled_from))
    report = trainer.step(replace(whole, calls=calls))
    assert report.metrics["logprob_gap"] == 0.0
    trainer.close()


def branches(*, apart: bool) -> TrainBatch:
    """Three calls that sampled the same first token, two of them not from the policy."""
    prompt, first = list(range(10, 30)), 31
    sampled_from = (
        replace(
            SampledFrom.of([(-0.5, runs(3, 4, 31, 33)), (-0.7, b""), (-0.1, runs(0, 50))]), **ADDED
        ),
        None,
        SampledFrom.of([(-0.5, runs(31, 40)), (-0.7, b"")]),
    )
    rests = ([40, 31], [50, 51, 52], [60])
    calls = [
        TrainCall(f"c{i}", 0, (0.8, -0.5, 0.3)[i], 0.7, [-2.0] * (1 + len(rest)), [0] * 4, "", one)
        for i, (rest, one) in enumerate(zip(rests, sampled_from, strict=True))
    ]
    calls = [replace(call, policy_versions=[0] * len(call.logprobs)) for call in calls]
    if apart:
        trees = [
            TrainTree(
                [TrainSegment(-1, [*prompt, first, *rest], [TrainSpan(20, i, 0, 1 + len(rest))])]
            )
            for i, rest in enumerate(rests)
        ]
    else:
        shared = TrainSegment(0, [first], [TrainSpan(0, i, 0, 1) for i in range(3)])
        ends = [
            TrainSegment(1, rest, [TrainSpan(0, i, 1, len(rest))]) for i, rest in enumerate(rests)
        ]
        trees = [TrainTree([TrainSegment(-1, prompt), shared, *ends])]
    return TrainBatch("b", 1, [TrainEpisode("e", "g", 1.0)], calls, trees, 70)


@pytest.mark.parametrize("chunked", [False, True])
def test_calls_with_the_same_token_keep_their_own_distributions(
    model_dir: str,
    context: WorkerContext,
    monkeypatch: pytest.MonkeyPatch,
    chunked: bool,
) -> None:
    if chunked:
        monkeypatch.setattr(chunking, "CHUNK_LOGITS", 2 * VOCAB)

    def report(*, apart: bool) -> StepReport:
        algorithm = AlgorithmConfig(
            learning_rate=1e-3, entropy_coef=0.1, clip_low=0.99, clip_high=9
        )
        trainer = make(model_dir, context, algorithm)
        return trainer.step(branches(apart=apart))

    trees, sequences = report(apart=False), report(apart=True)
    for name in ("loss", "grad_norm", "entropy"):
        assert trees.metrics[name] == pytest.approx(sequences.metrics[name], rel=1e-4)
    for tree, sequence in zip(trees.logprobs, sequences.logprobs, strict=True):
        assert tree == pytest.approx(sequence, abs=1e-4)
    assert len({row[0] for row in trees.logprobs}) == 3


@pytest.mark.parametrize(
    ("sampled_from", "words"),
    [
        (SampledFrom([-1.0], [], [-1]), "another number"),
        (SampledFrom([-1.0] * 2, [], [0, -1]), "does not exist"),
        (SampledFrom([-1.0] * 2, [runs(4, 3)], [0, -1]), "an invalid set"),
        (SampledFrom([-1.0] * 2, [runs(4)], [0, -1]), "an invalid set"),
        (SampledFrom([-1.0] * 2, [b""], [0, -1]), "an invalid set"),
        (SampledFrom([-1.0] * 2, [runs(4, VOCAB + 1)], [0, -1]), "an invalid set"),
        (SampledFrom([-1.0] * 2, [], [-1] * 2, logit_bias=((VOCAB, 1.0),)), "outside"),
    ],
)
def test_malformed_distributions_are_refused(
    model_dir: str, context: WorkerContext, sampled_from: SampledFrom, words: str
) -> None:
    trainer = make(model_dir, context)
    whole = branches(apart=True)
    calls = [*whole.calls[:2], replace(whole.calls[2], sampled_from=sampled_from)]
    with pytest.raises(TrainerError, match=rf"call 2 \(c2\): .*{words}"):
        trainer.step(replace(whole, calls=calls))


def test_a_trainer_that_ignores_them_is_found_out(
    models: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_loss_suite import TestTorchLoss

    monkeypatch.setattr(Restrictions, "__call__", lambda _, logits: logits)
    suite = TestTorchLoss()
    suite.path = models("qwen2")
    with pytest.raises(AssertionError):
        suite.test_tokens_are_trained_as_they_were_sampled(tmp_path, "token_mean")
