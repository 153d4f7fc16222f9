"""A recorded run that learns: 30 steps, and evaluations of two task sets."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

from tests.inspect.recorded import HOSTILE, Recording, said

STEPS = 30


def learning_recording(model_dir: Path, *, steps: int = STEPS, slope: float = 1.0) -> Recording:
    """A run whose reward rises; half of the answers of its last step end alike."""
    recording = Recording(model_dir)
    for step in range(1, steps + 1):
        ids = []
        share = min(1.0, slope * step / steps)
        for number in range(4):
            name = f"s{step:03d}-{number}"
            recording.episode(name, task=f"task-{number}")
            good = number < round(4 * share)
            answer = "the answer is 42" if good else f"hello {'there ' * (number + 1)}{step}"
            recording.call(name, [said("user", f"what is {number}?")], answer)
            recording.end(name, float(good))
            ids.append(name)
        recording.step(step, ids, **_metrics(step, share))
        if step % 10 == 0:
            for tag in ("held-out", HOSTILE):
                for number in range(6):
                    name = f"e{step:03d}-{number}-{len(tag)}"
                    recording.episode(name, task=f"eval-{number}")
                    recording.call(name, [said("user", f"what is {number}?")], "it was")
                    recording.end(
                        name,
                        float(number < 6 * share),
                        kind="eval",
                        tag=tag,
                        claim_version=step,
                    )
    return recording


def _metrics(step: int, share: float) -> dict[str, float]:
    wave = math.sin(step)
    return {
        "reward_mean": share + 0.02 * wave,
        "loss": 0.3 / step,
        "entropy": 1.2 - 0.5 * share,
        "sampled_entropy": 1.25 - 0.5 * share,
        "kl": 0.001 * step,
        "logprob_gap": 0.01,
        "logprob_gap_mean": 0.001,
        "staleness_mean": 0.5,
        "staleness_max": 1.0,
        "tokens_per_call": 20 + wave,
        "calls": 4.0,
        "calls_cut_off": 3.0 if 10 <= step < 15 else 0.0,
        "rollout_seconds": 8 + wave,
        "merge_seconds": 0.2,
        "update_seconds": 3.0,
        "sync_seconds": 1.0,
        "tokens_per_second": 500.0,
    }


def change(run_dir: Path, statement: str, *values: object) -> None:
    """Change the store of a run behind its back."""
    database = sqlite3.connect(run_dir / "samples.sqlite3")
    with database:
        assert database.execute(statement, values).rowcount
    database.close()
