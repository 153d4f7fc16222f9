"""A step in a process of little memory; run as a script, it prints the step's metrics as JSON.

``python little_memory.py DIRECTORY [MEBIBYTES]``: with the second argument, so much is left for the
step.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from transformers import AutoModelForCausalLM, Qwen2Config

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

VOCAB, EPISODES, TOKENS = 8192, 8, 256
BUDGET = EPISODES * TOKENS


def write_model(path: Path) -> str:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


def wide_batch() -> TrainBatch:
    """Nearly every token is trained, so that logits take most of the memory."""
    rng = np.random.default_rng(0)
    trees, calls = [], []
    for episode in range(EPISODES):
        ids = rng.integers(VOCAB, size=TOKENS).tolist()
        trained = TOKENS - 1
        advantage = 1.0 if episode % 2 else -1.0
        calls.append(
            TrainCall(str(episode), episode, advantage, 1.0, [-9.0] * trained, [0] * trained)
        )
        trees.append(TrainTree([TrainSegment(-1, ids, [TrainSpan(1, episode, 0, trained)])]))
    episodes = [TrainEpisode(str(i), "task", float(i % 2)) for i in range(EPISODES)]
    return TrainBatch("batch", 1, episodes, calls, trees, BUDGET)


def leave(mebibytes: int) -> None:
    """Let this process have so much more memory than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    directory = Path(sys.argv[1])
    settings = TorchTrainerSettings(device="cpu", measure_costs=False)
    trainer = TorchTrainer(settings, WorkerContext(directory))
    model = ModelConfig(path=write_model(directory / "model"))
    trainer.start(model, AlgorithmConfig(learning_rate=1e-3, token_budget=BUDGET))
    if len(sys.argv) > 2:
        leave(int(sys.argv[2]))
    sys.stdout.write(json.dumps(trainer.step(wide_batch()).metrics))


if __name__ == "__main__":
    main()
