"""Benchmark the embedded backend with random weights of a realistic size, on CPU or CUDA.

Engine and trainer are used as a server uses them, with weights shared in process. The benchmark
measures the engine's tokens per second at `--concurrency` requests, one training step on the
sampled tokens, and the largest difference between the engine's and the trainer's logprobs of the
same tokens. The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from options import at_least

from ajet_core.interfaces import GenerateRequest, SamplingParams, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_torch.on_device import SIZES, write_random_model


@dataclass(frozen=True)
class Sampled:
    """One completion with the engine's logprobs."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


async def sample(
    engine: TorchEngine, options: argparse.Namespace, vocabulary: int
) -> list[Sampled]:
    """Sample `--concurrency` completions at once."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(
        vocabulary, (options.concurrency, options.prompt_tokens), generator=generator
    ).tolist()

    async def one(index: int, prompt: list[int]) -> Sampled:
        ids: list[int] = []
        logprobs: list[float] = []
        sampling = SamplingParams(max_tokens=options.new_tokens)
        async for chunk in engine.generate(GenerateRequest(str(index), prompt, sampling)):
            ids += chunk.token_ids
            logprobs += chunk.logprobs
        return Sampled(prompt, ids, logprobs)

    return list(await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts))))


def make_batch(completions: list[Sampled]) -> TrainBatch:
    """Make two groups with alternating rewards, so that every sequence has an advantage."""
    episodes = [
        TrainEpisode(f"e{i}", f"g{i % 2}", float(i // 2 % 2)) for i in range(len(completions))
    ]
    calls, trees = [], []
    for i, done in enumerate(completions):
        prompt, sampled = len(done.prompt_ids), len(done.token_ids)
        advantage = 2 * episodes[i].reward - 1
        calls.append(TrainCall(f"c{i}", i, advantage, 1.0, done.logprobs, [0] * sampled))
        span = TrainSpan(prompt, i, 0, sampled)
        trees.append(TrainTree([TrainSegment(-1, done.prompt_ids + done.token_ids, [span])]))
    return TrainBatch("b", 1, episodes, calls, trees, sum(tree.tokens for tree in trees))


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Return all figures of one run."""
    parameters = write_random_model(directory / "model", options.size)
    model = ModelConfig(path=str(directory / "model"), dtype=options.dtype)
    context = WorkerContext(run_dir=directory)
    trainer = TorchTrainer(TorchTrainerSettings(device=options.device), context)
    info = trainer.start(
        model, AlgorithmConfig(learning_rate=1e-6, token_budget=options.token_budget)
    )
    update = trainer.publish("in_process", 0)
    engine = TorchEngine(
        TorchEngineSettings(device=options.device, max_requests=options.concurrency), context
    )
    engine_info = await engine.start(model)
    await engine.update_weights(update)
    await sample(engine, options, engine_info.vocab_size)
    began = time.perf_counter()
    completions = await sample(engine, options, engine_info.vocab_size)
    rollout = time.perf_counter() - began
    await engine.pause()
    report = trainer.step(make_batch(completions))
    await engine.close()
    trainer.close()
    sampled = sum(len(c.token_ids) for c in completions)
    cuda = torch.cuda.is_available()
    return {
        "benchmark": "torch_backend",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "torch": torch.__version__,
        "device": info.device,
        "parameters": parameters,
        "dtype": options.dtype,
        "concurrency": options.concurrency,
        "engine_tokens_per_second": round(sampled / rollout, 1),
        "trainer_tokens_per_second": round(report.tokens_processed / report.seconds, 1),
        "max_logprob_gap": report.metrics["logprob_gap"],
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.5b")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--concurrency", type=at_least(1), default=64)
    parser.add_argument("--prompt-tokens", type=at_least(1), default=256)
    parser.add_argument("--new-tokens", type=at_least(1), default=128)
    parser.add_argument("--token-budget", type=at_least(1), default=16384)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-torch-") as directory:
        line = json.dumps(asyncio.run(measure(options, Path(directory))))
    if options.output is not None:
        options.output.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
