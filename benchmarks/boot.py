"""Benchmark how long a worker of the torch backend boots, until engine and trainer are ready.

It uses a tiny model on the CPU, so that the time of the boot itself remains: a server that was
killed needs it before it continues. `first_s` is the first boot of a run. `boot_s` is a later one,
in which trainer and engine reuse the first one's measurements. Both are medians from the start of
the process to the boot's report. `parts` are seconds of a process that does the same as a worker,
in the same order. All seconds depend on this machine, and grow with its other load: `load` is the
load average at the start and at the end.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from options import at_least
from reporting import report

from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_server.workers.codec import BootPlan, ComponentPlan
from ajet_server.workers.process import WorkerProcess

BOOT_SECONDS = 120.0
PARTS = """
import asyncio, json, sys, time
from pathlib import Path
import ajet_server.workers.host
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig

parts, last = {}, time.perf_counter()

def done(part):
    global last
    now = time.perf_counter()
    parts[part], last = round(now - last, 3), now

model = ModelConfig(path=sys.argv[1])
context = WorkerContext(run_dir=Path(sys.argv[2]))
import torch
done("import_torch")
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
done("import_trainer")
import transformers
transformers.AutoModelForCausalLM
architecture = transformers.AutoConfig.from_pretrained(model.path).architectures[0]
getattr(transformers, architecture)
done("import_model_class")
trainer = TorchTrainer(TorchTrainerSettings(device="cpu"), context)
trainer.start(model, AlgorithmConfig())
done("start_trainer")
trainer.publish("in_process", 0)
from ajet_backend_torch.engine import TorchEngine
engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
asyncio.run(engine.start(model))
done("start_engine")
print(json.dumps(parts))
"""


def make_model(directory: Path) -> None:
    """Write a model with random weights, in a process because this one must not import torch."""
    code = (
        "import sys; from transformers import LlamaConfig, LlamaForCausalLM\n"
        "sizes = dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2)\n"
        "config = LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=2048)\n"
        "LlamaForCausalLM(config).save_pretrained(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, capture_output=True)


def boot_plan(model: Path, run_dir: Path) -> BootPlan:
    """Return a plan with engine and trainer in one worker, as servers make it."""

    def component(kind: str) -> ComponentPlan:
        return ComponentPlan(
            name="torch",
            target=f"ajet_backend_torch.{kind.lower()}:Torch{kind}",
            settings_target=f"ajet_backend_torch.settings:Torch{kind}Settings",
            settings={"device": "cpu"},
        )

    return BootPlan(
        run_dir=str(run_dir),
        seed=0,
        model=ModelConfig(path=str(model)),
        algorithm=AlgorithmConfig(),
        engine=component("Engine"),
        trainer=component("Trainer"),
        checkpoint=None,
        channel="in_process",
    )


async def boot(plan: BootPlan) -> tuple[float, float]:
    """Return the seconds from a worker's start to its first answer and to its report."""
    began = time.perf_counter()
    worker = await WorkerProcess.spawn(Path(plan.run_dir) / "worker.log")
    try:
        await worker.ping()
        answered = time.perf_counter() - began
        await worker.boot(plan, BOOT_SECONDS)
        return answered, time.perf_counter() - began
    finally:
        await worker.close()


def measure(directory: Path, repeats: int) -> dict[str, object]:
    """Measure all figures; first and later boots alternate, so that load affects both alike."""
    model = directory / "model"
    make_model(model)
    before = os.getloadavg()[0]
    answered, first, later, parts = [], [], [], []
    for number in range(repeats):
        plan = boot_plan(model, directory / f"run{number}")
        first.append(asyncio.run(boot(plan))[1])
        answer, report_seconds = asyncio.run(boot(plan))
        answered.append(answer)
        later.append(report_seconds)
        command = [sys.executable, "-c", PARTS, str(model), plan.run_dir]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        parts.append(json.loads(done.stdout))
        print(f"first {first[-1]:.2f} s, later {later[-1]:.2f} s, {parts[-1]}", file=sys.stderr)
    return {
        "benchmark": "boot",
        "repeats": repeats,
        "first_s": round(statistics.median(first), 2),
        "boot_s": round(statistics.median(later), 2),
        "boot_best_s": round(min(later), 2),
        "answers_after_s": round(statistics.median(answered), 2),
        "parts": {part: statistics.median(each[part] for each in parts) for part in parts[0]},
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-boot-") as directory:
        result = measure(Path(directory), options.repeats)
    report(result, options.output)


if __name__ == "__main__":
    main()
