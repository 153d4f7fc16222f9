"""A run on several processes; run as a script, it prints what came of it as JSON.

``python several_processes.py MODEL DIRECTORY PROCESSES MODE``; MODE is ``train``, ``lora``, or ``kill``, which ends a peer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from batches import LORA, batch, load, make, weights

from ajet_core.errors import WeightsLostError
from ajet_core.protocol.run import AlgorithmConfig


def main() -> None:
    path, directory, processes, mode = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    algorithm = AlgorithmConfig(
        learning_rate=1e-3,
        minibatches=2,
        epochs=2,
        kl_coef=0.1,
        entropy_coef=0.05,
        token_budget=100,
        importance="truncated",
        aggregation="episode_mean" if mode == "lora" else "token_mean",
    )
    lora = LORA if mode == "lora" else None
    trainer = make(path, directory / "run", algorithm, lora, processes=processes)
    module = load(path)

    def rolled(step: int) -> object:
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
    for step in (1, 2):
        reports.append(trainer.step(rolled(step)))
        trainer.publish("safetensors_dir", step)
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
    trainer.export(directory / "export")
    trainer.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
