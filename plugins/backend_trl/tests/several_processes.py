"""A run on several processes; run as a script, it prints what came of it as JSON.

``python several_processes.py MODEL TEACHER DIRECTORY PROCESSES MODE DISTRIBUTION``; MODE is
``train``, ``lora``, ``sft``, ``distillation``, ``kill``, which ends a peer, or ``apart``, where a
checkpoint is there for one process alone; DISTRIBUTION one of `DISTRIBUTIONS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from ajet_backend_trl.trainer import TrlTrainer
from batches import LORA, batch, load, make, make_distillation, make_sft, weights
from torch.distributed.fsdp import FSDPModule

from ajet_core.errors import StepRefusedError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch

DISTRIBUTIONS: dict[str, dict[str, object]] = {
    "ddp": {},
    "fsdp": {"distribution": "fsdp"},
    "fsdp at once": {
        "distribution": "fsdp",
        "fsdp": {"reshard_after_forward": False, "auto_wrap_policy": "NO_WRAP"},
    },
    "fsdp by class": {
        "distribution": "fsdp",
        "fsdp": {"cpu_offload": True, "transformer_layer_cls_to_wrap": ["Qwen2MLP"]},
    },
    "zero 2": {"distribution": "deepspeed"},
    "zero 3": {"distribution": "deepspeed", "deepspeed": {"zero_stage": 3}},
}


def main() -> None:
    path, teacher, directory, mode = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[5]
    settings = {"processes": int(sys.argv[4]), **DISTRIBUTIONS[sys.argv[6]]}
    # Where the other processes stay.
    os.chdir(directory)
    common = {"learning_rate": 1e-3, "minibatches": 2, "epochs": 2, "token_budget": 100}
    if mode == "sft":
        trainer = make_sft(path, directory / "run", AlgorithmConfig(**common), **settings)
    elif mode == "distillation":
        algorithm = AlgorithmConfig(**common)
        trainer = make_distillation(path, teacher, directory / "run", algorithm, **settings)
    else:
        algorithm = AlgorithmConfig(
            **common,
            kl_coef=0.1,
            entropy_coef=0.05,
            importance="truncated",
            # Less than an update makes, so that all are shortened.
            max_update_kl=1e-3,
            aggregation="episode_mean" if mode == "lora" else "token_mean",
        )
        lora = LORA if mode == "lora" else None
        trainer = make(path, directory / "run", algorithm, lora, **settings)
    module = load(path)

    def rolled(step: int) -> TrainBatch:
        return batch(
            module,
            (1.0, 0.0, 0.5, 0.0, 0.3, 0.9, 0.0),
            step,
            noise=0.2,
            temperatures=(0.7, 1.0),
            groups="aabbccc",
        )

    found: dict[str, object] = {}
    reports = []
    if mode == "kill":
        trainer.step(rolled(1))
        assert trainer._peers is not None
        os.kill(trainer._peers._processes[0].pid, signal.SIGKILL)
        for attempt in ("step", "publish"):
            try:
                trainer.step(rolled(2)) if attempt == "step" else trainer.publish(
                    "safetensors_dir", 1
                )
            except WeightsLostError as error:
                found[attempt] = error.message
        sys.stdout.write(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)
    if mode == "apart":
        found = parted(trainer, directory, rolled)
        trainer.close()
        sys.stdout.write(json.dumps(found))
        return
    for step in (1, 2):
        reports.append(trainer.step(rolled(step)))
        trainer.publish("safetensors_dir", step)
    published = trainer.publish("safetensors_dir", 2).location
    poisoned = rolled(3)
    calls = [replace(call, advantage=call.advantage * 1e12) for call in poisoned.calls]
    before = {name: tensor.clone() for name, tensor in weights(trainer).items()}
    try:
        trainer.step(replace(poisoned, calls=calls))
    except StepRefusedError as error:
        found["refused"] = error.message
    found["untouched"] = all(torch.equal(before[n], t) for n, t in weights(trainer).items())
    trainer.save(directory / "checkpoint")
    after = {name: tensor.clone() for name, tensor in weights(trainer).items()}
    trainer.step(rolled(4))
    trainer.load(directory / "checkpoint")
    found["restored"] = all(torch.equal(after[n], t) for n, t in weights(trainer).items())
    again = trainer.step(rolled(4))
    found["reports"] = [
        {
            "metrics": report.metrics,
            "logprobs": report.logprobs,
            "trained": report.tokens_trained,
            "processed": report.tokens_processed,
        }
        for report in (*reports, again)
    ]
    found["learned"] = sum(int((before[n] != t).sum()) for n, t in weights(trainer).items())
    found["held"] = sum(t.numel() for t in weights(trainer).values())
    found["published"] = published
    plugin = getattr(trainer.policy.trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        found["fsdp"] = {
            "version": plugin.fsdp_version,
            "reshard_after_forward": plugin.reshard_after_forward,
            "layers": plugin.transformer_cls_names_to_wrap,
            "units": sum(isinstance(m, FSDPModule) for m in trainer.policy.trainer.model.modules()),
        }
    trainer.export(directory / "export")
    trainer.close()
    sys.stdout.write(json.dumps(found))


def parted(
    trainer: TrlTrainer, directory: Path, rolled: Callable[[int], TrainBatch]
) -> dict[str, object]:
    """Load a checkpoint in one process alone, then in all, and note what is refused meanwhile."""
    there, here = directory / "there", directory / "elsewhere" / "here"
    trainer.step(rolled(1))
    here.parent.mkdir()
    for place in (there, here):
        trainer.save(place)
    expected = trainer.step(rolled(2)).logprobs
    os.chdir(here.parent)
    found: dict[str, object] = {}
    for place in (there, here):
        refused = []
        for attempt in (
            lambda name=place.name: trainer.load(Path(name)),
            lambda: trainer.step(rolled(2)),
            lambda: trainer.publish("safetensors_dir", 1),
            lambda: trainer.save(directory / "lost"),
        ):
            try:
                attempt()
            except WeightsLostError as error:
                refused.append(error.message)
        trainer.load(place)
        mended = trainer.step(rolled(2)).logprobs == expected
        found[place.name] = {"refused": refused, "mended": mended}
    return found


if __name__ == "__main__":
    main()
