"""One batch, one trainer, in an interpreter that has it: what comes of a step is written to a file.

``python cross_check.py TRAINER MODEL DIRECTORY``; TRAINER is ``torch``, ``trl`` or ``verl``. The
loss of all three is the clipped surrogate with a mean over tokens: TRL calls it ``dapo`` and verl
``vanilla`` with ``token-mean``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_testing.losses.batches import linear_batch
from ajet_torch.models import load_model

VOCAB = 96
ALGORITHM = AlgorithmConfig(
    learning_rate=1e-3,
    clip_low=0.1,
    clip_high=0.3,
    max_grad_norm=0.5,
    token_budget=150,
)
TRAINERS = {
    "torch": ("ajet_backend_torch", "TorchTrainer", {}),
    "trl": ("ajet_backend_trl", "TrlTrainer", {"loss_type": "dapo"}),
    "verl": ("ajet_backend_verl", "VerlTrainer", {"loss_agg_mode": "token-mean"}),
}


def make(name: str, run_dir: Path) -> Trainer:
    """The trainer, not started."""
    package, cls, settings = TRAINERS[name]
    made = getattr(importlib.import_module(f"{package}.trainer"), cls)
    options = getattr(importlib.import_module(f"{package}.settings"), f"{cls}Settings")
    found: Trainer = made(options(device="cpu", **settings), WorkerContext(run_dir, 3))
    return found


def main() -> None:
    name, path, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    model = ModelConfig(path=path, dtype="float32")
    module = load_model(model, torch.device("cpu"))

    def score(ids: list[int], temperature: float) -> list[float]:
        with torch.no_grad():
            logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
        found = torch.log_softmax(logits / temperature, -1)
        return found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    b = linear_batch(
        VOCAB, score, rewards=(1.0, 0.0, 0.5, 0.5, 0.2, 0.9), groups="aabbcc", noise=0.3, rows=2
    )
    trainer = make(name, directory / "run")
    trainer.start(model, ALGORITHM)
    try:
        report = trainer.step(b)
        trainer.export(directory / "after")
    finally:
        trainer.close()
    before = load_file(Path(path) / "model.safetensors")
    after = load_file(directory / "after" / "model.safetensors")
    save_file({n: after[n] - before[n] for n in before}, directory / "moved.safetensors")
    found = {"metrics": report.metrics, "logprobs": report.logprobs}
    (directory / "report.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
