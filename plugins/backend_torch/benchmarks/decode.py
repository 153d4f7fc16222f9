"""Tokens per CPU-second of the engine ``torch`` on a tiny model under an agent-like load.

48 agents each run conversations of several turns: every turn extends the last by the sampled tokens
and a short observation. Prints one JSON line. Usage: ``python decode.py [--agents 48] [--seconds
5]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from transformers import Qwen2Config, Qwen2ForCausalLM

from ajet_core.interfaces import GenerateRequest, SamplingParams, WorkerContext
from ajet_core.protocol import ModelConfig

VOCAB = 512
STOPS = tuple(range(24))


def save_model(path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)


async def agent(engine: TorchEngine, number: int, deadline: float) -> int:
    rng = np.random.default_rng(number)
    system = [7] * 90
    made = 0
    turn = 0
    while time.perf_counter() < deadline:
        history = system + rng.integers(VOCAB, size=20).tolist()
        for _ in range(5):
            turn += 1
            request = GenerateRequest(
                request_id=f"{number}-{turn}",
                prompt_ids=history,
                # About 20 tokens a turn, as a tool call of a tiny model has.
                sampling=SamplingParams(max_tokens=40, stop_token_ids=STOPS),
            )
            async for chunk in engine.generate(request):
                history = history + chunk.token_ids
                made += len(chunk.token_ids)
            history = history + rng.integers(VOCAB, size=25).tolist()
    return made


async def run(agents: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_model(path)
        engine = TorchEngine(TorchEngineSettings(device="cpu"), WorkerContext(run_dir=path))
        await engine.start(ModelConfig(path=str(path)))
        await asyncio.gather(*(agent(engine, n, time.perf_counter()) for n in range(agents)))
        cpu, wall = time.process_time(), time.perf_counter()
        made = sum(await asyncio.gather(*(agent(engine, n, wall + seconds) for n in range(agents))))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        stats = await engine.stats()
        await engine.close()
    sys.stdout.write(
        json.dumps(
            {
                "agents": agents,
                "tokens": made,
                "tokens_per_cpu_second": round(made / cpu),
                "tokens_per_second": round(made / wall),
                "cached_share": round(stats.cached_tokens / stats.prompt_tokens, 3),
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.agents, arguments.seconds))
