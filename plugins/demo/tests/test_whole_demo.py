"""The main job as a user runs it: `ajet demo`, interrupted with Ctrl-C and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import ENTRY, steps_in

pytestmark = pytest.mark.timeout(900)

KEYS = {
    "success_before",
    "success_after",
    "steps",
    "episodes",
    "calls",
    "seconds",
    "rollout_seconds",
    "update_seconds",
    "overhead_seconds",
    "tokens_raw",
    "tokens_trained",
}


def start(run_dir: Path, steps: int) -> subprocess.Popen[str]:
    """The demo with a target that only its number of steps can end."""
    command = [sys.executable, "-c", ENTRY, "demo", "--run-dir", str(run_dir)]
    return subprocess.Popen(
        [*command, "--steps", str(steps), "--target", "1.0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def children_of(run_dir: Path) -> list[str]:
    """Command lines of living processes that name the run directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(run_dir) in line:
            found.append(line)
    return found


def test_ctrl_c_stops_it_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ajet_backend_torch")
    pytest.importorskip("aiohttp")
    run_dir = tmp_path / "demo"
    first = start(run_dir, 60)
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("step 1:"):
            break
    else:
        pytest.fail(f"the demo ended before its first step: {first.wait()}")
    first.send_signal(signal.SIGINT)
    _, rest = first.communicate(timeout=120)
    assert first.returncode == 130, rest
    assert "Run the same command again to resume" in rest
    assert children_of(run_dir) == []

    done = steps_in(run_dir)[-1]
    untouched = (run_dir / "model" / "model.safetensors").stat()
    second = start(run_dir, done + 1)
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0, err
    assert (run_dir / "model" / "model.safetensors").stat() == untouched
    summary = json.loads(out.strip().splitlines()[-1])
    assert set(summary) >= KEYS
    assert summary["steps"] == done + 1
    assert summary["episodes"] >= (done + 1) * 64 + 64
    assert 0 <= summary["success_before"] <= 0.4
    assert summary["overhead_seconds"] < summary["seconds"]
    assert json.loads((run_dir / "summary.json").read_text()) == summary
    assert steps_in(run_dir) == list(range(1, done + 2))
    assert (run_dir / "reward.png").read_bytes().startswith(b"\x89PNG")

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run_dir / "trained_model")
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "trained_model")
    assert len(tokenizer) <= model.config.vocab_size
    assert children_of(run_dir) == []
