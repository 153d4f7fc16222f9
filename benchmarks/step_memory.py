"""Measure the peak memory of a training step with a large vocabulary: `step_memory.py`.

A step of the trainer `torch` runs in a process of its own, once with all logits of a pass at once
and once with logits in chunks. The peak is that of the process less what it had before the step
(on CUDA: that of torch's allocator). The JSON line comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from options import at_least
from reporting import report

CHILD = "--child"
WAYS = ("whole", "chunked")


def write_model(directory: Path, vocabulary: int, hidden: int) -> None:
    """Write a random model of two layers."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def peak_bytes(device: str) -> int:
    """Return the highest memory use of this process, or on CUDA of torch's allocator."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def step(model: str, way: str, tokens: int, device: str) -> dict[str, float]:
    """Train one step on four calls of `tokens` tokens together."""
    import torch
    from ajet_backend_torch import logits
    from ajet_backend_torch.settings import TorchTrainerSettings
    from ajet_backend_torch.trainer import TorchTrainer

    from ajet_core.interfaces import WorkerContext
    from ajet_core.protocol import AlgorithmConfig, ModelConfig
    from ajet_core.timeline import (
        TrainBatch,
        TrainCall,
        TrainEpisode,
        TrainSegment,
        TrainSpan,
        TrainTree,
    )

    if way == "whole":
        logits.CHUNK_LOGITS = 2**62
    with tempfile.TemporaryDirectory() as run_dir:
        trainer = TorchTrainer(
            TorchTrainerSettings(device=device, measure_costs=False),
            WorkerContext(run_dir=Path(run_dir)),
        )
        trainer.start(
            ModelConfig(path=model), AlgorithmConfig(learning_rate=1e-5, token_budget=tokens)
        )
        rng = random.Random(0)
        length = tokens // 4
        calls, trees = [], []
        for number in range(4):
            ids = [rng.randrange(1000) for _ in range(length)]
            sampled = length - 8
            calls.append(
                TrainCall(
                    str(number), number, 1.0 - number % 2 * 2, 1.0, [-8.0] * sampled, [0] * sampled
                )
            )
            trees.append(TrainTree([TrainSegment(-1, ids, [TrainSpan(8, number, 0, sampled)])]))
        episodes = [TrainEpisode(str(i), "group", float(i % 2)) for i in range(4)]
        batch = TrainBatch("batch", 1, episodes, calls, trees, tokens)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before, began = peak_bytes(device), time.perf_counter()
        done = trainer.step(batch)
        seconds = time.perf_counter() - began
        return {
            "peak_gib": (peak_bytes(device) - before) / 2**30,
            "seconds": seconds,
            "loss": done.metrics["loss"],
            "grad_norm": done.metrics["grad_norm"],
        }


def measured(model: Path, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run `step` in a process of its own."""
    command = [
        sys.executable,
        __file__,
        CHILD,
        str(model),
        way,
        str(options.tokens),
        options.device,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocabulary", type=at_least(1024), default=151_936)
    parser.add_argument("--hidden", type=at_least(8), default=256)
    parser.add_argument("--tokens", type=at_least(64), default=4096, help="of the batch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory), options.vocabulary, options.hidden)
        found = {way: measured(Path(directory), way, options) for way in WAYS}
    whole, chunked = (found[way] for way in WAYS)
    report(
        {
            "benchmark": "step_memory",
            "vocabulary": options.vocabulary,
            "hidden": options.hidden,
            "tokens": options.tokens,
            "device": options.device,
            **{
                f"{name}_{way}": round(value, 4)
                for way in WAYS
                for name, value in found[way].items()
            },
            "peak_ratio": round(chunked["peak_gib"] / whole["peak_gib"], 4),
            "seconds_ratio": round(chunked["seconds"] / whole["seconds"], 3),
        },
        options.output,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(step(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])))
    else:
        main()
