"""Exact mode: a token has the same logits whatever is computed with it, to the bit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.exact import check_exact, make_exact, prove_exact
from ajet_backend_torch.logits import SelectedLogits
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB, load

from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_core.interfaces import GenerateChunk, GenerateRequest, SamplingParams, WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)

KINDS = ("qwen2", "wide", "llama", "gpt_neox", "gemma")


@pytest.fixture
def exact(tmp_path: Path) -> WorkerContext:
    return WorkerContext(run_dir=tmp_path / "run", seed=3, exact=True)


def made_exact(path: str) -> torch.nn.Module:
    module = load(path)
    make_exact(module)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_the_model(
    models: Callable[[str], str], kind: str
) -> None:
    module, plain = made_exact(models(kind)), load(models(kind))
    prove_exact(module, VOCAB)
    ids = torch.randint(VOCAB, (3, 150), generator=torch.Generator().manual_seed(0))
    logits, expected = (m(input_ids=ids, use_cache=False).logits for m in (module, plain))
    assert torch.allclose(logits, expected, atol=1e-4)
    targets = ids[:, 1:].reshape(-1)
    for found in (logits, expected):
        torch.nn.functional.cross_entropy(found[:, :-1].reshape(-1, VOCAB), targets).backward()
    for (name, parameter), other in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.allclose(parameter.grad, other.grad, atol=1e-5), name


def test_a_plain_model_is_not_exact(model_dir: str) -> None:
    with pytest.raises(ModelDirectoryError, match="depend on the size of the batch") as refused:
        prove_exact(load(model_dir), VOCAB)
    assert refused.value.message.count("exact mode cannot compute") == 1


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_token_has_the_same_logits_in_any_pass(
    models: Callable[[str], str], data: st.DataObject
) -> None:
    module = made_exact(models("llama"))
    seed = data.draw(st.integers(0, 2**31))
    ids = torch.randint(VOCAB, (6, 200), generator=torch.Generator().manual_seed(seed))
    rows = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    width = data.draw(st.integers(1, 200))
    with torch.no_grad():
        apart = module(input_ids=ids[rows, :width], use_cache=False).logits
        together = module(input_ids=ids, use_cache=False).logits
    assert torch.equal(apart, together[rows, :width])


def test_logits_are_computed_in_chunks_as_by_the_model(model_dir: str) -> None:
    logits, plain = SelectedLogits(made_exact(model_dir)), SelectedLogits(load(model_dir))
    assert (logits.narrows, logits.divides) == (plain.narrows, plain.divides) == (True, True)


def test_other_precisions_are_refused(model_dir: str) -> None:
    with pytest.raises(ConfigError, match=r"set model\.dtype to float32"):
        make_exact(load(model_dir).to(torch.bfloat16))


def test_soft_caps_on_attention_are_refused(models: Callable[[str], str]) -> None:
    with pytest.raises(ModelDirectoryError, match=r"exact mode cannot compute Gemma2.*softcap"):
        prove_exact(made_exact(models("gemma2")), VOCAB)


def test_a_gpu_or_several_threads_are_refused() -> None:
    check_exact(torch.device("cpu"), 1)
    with pytest.raises(ConfigError, match="computes on the CPU, not on cuda"):
        check_exact(torch.device("cuda"), None)
    with pytest.raises(ConfigError, match="set threads to 1"):
        check_exact(torch.device("cpu"), 2)


async def sampled(engine: TorchEngine, requests: list[GenerateRequest]) -> list[GenerateChunk]:
    """The completions of requests made at once."""

    async def one(request: GenerateRequest) -> GenerateChunk:
        chunks = [chunk async for chunk in engine.generate(request)]
        ids = [token for chunk in chunks for token in chunk.token_ids]
        logprobs = [value for chunk in chunks for value in chunk.logprobs]
        sampled_from = [one for chunk in chunks for one in chunk.sampled_from or ()]
        return replace(
            chunks[-1], token_ids=ids, logprobs=logprobs, sampled_from=sampled_from or None
        )

    return list(await asyncio.gather(*(one(request) for request in requests)))


def request(number: int, prompt: list[int]) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=20, seed=number, temperature=(1.0, 0.7)[number % 2], stop_token_ids=(3,)
    )
    return GenerateRequest(f"r{number}", prompt, sampling)


def conversation(number: int) -> list[int]:
    generator = torch.Generator().manual_seed(number % 5)
    shared = torch.randint(VOCAB, (40 + 30 * (number % 3),), generator=generator).tolist()
    return [*shared, *(number * 7 % VOCAB for _ in range(number % 4 + 1))]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)], ids=["full", "lora"])
async def test_the_trainer_computes_what_the_engine_sampled(
    model_dir: str, exact: WorkerContext, lora: LoraConfig | None
) -> None:
    model = ModelConfig(path=model_dir, lora=lora)
    trainer = TorchTrainer(TorchTrainerSettings(device="cpu"), exact)
    trainer.start(model, AlgorithmConfig(learning_rate=1e-2))
    trainer.publish("in_process", 0)
    engine = TorchEngine(TorchEngineSettings(device="cpu", max_requests=8), exact)
    await engine.start(model)
    try:
        for version in range(2):
            requests = [request(number, conversation(number)) for number in range(20)]
            together = await sampled(engine, requests)
            for number in (0, 7, 13):
                (alone,) = await sampled(engine, [requests[number]])
                assert alone.token_ids == together[number].token_ids
                assert alone.logprobs == together[number].logprobs
            await engine.pause()
            report = trainer.step(batch(version + 1, requests, together))
            assert report.metrics["logprob_gap"] == 0.0
            update = trainer.publish("in_process", version + 1)
            await engine.update_weights(update)
            await engine.resume()
    finally:
        await engine.close()
        trainer.close()


def batch(step: int, requests: list[GenerateRequest], answers: list[GenerateChunk]) -> TrainBatch:
    calls, trees, episodes = [], [], []
    for number, (asked, answer) in enumerate(zip(requests, answers, strict=True)):
        size = len(answer.token_ids)
        calls.append(
            TrainCall(
                f"c{number}",
                number,
                1.0 if number % 2 else -1.0,
                asked.sampling.temperature,
                answer.logprobs,
                [step - 1] * size,
            )
        )
        span = TrainSpan(len(asked.prompt_ids), number, 0, size)
        trees.append(TrainTree([TrainSegment(-1, [*asked.prompt_ids, *answer.token_ids], [span])]))
        episodes.append(TrainEpisode(f"e{number}", f"g{number // 2}", float(number % 2)))
    return TrainBatch(f"b{step}", step, episodes, calls, trees, sum(t.tokens for t in trees))
