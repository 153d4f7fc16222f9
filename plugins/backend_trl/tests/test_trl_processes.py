"""Several processes train as one. Each run is a separate process: accelerate keeps its state."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import load
from safetensors.torch import load_file

pytestmark = pytest.mark.timeout(400)
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)

OFTEN_SHARDED = pytest.mark.parametrize(
    "distribution", [pytest.param("ddp", marks=pytest.mark.nightly), "fsdp"]
)


def run(
    models: Callable[..., str], directory: Path, processes: int, mode: str, distribution: str
) -> dict[str, Any]:
    """What `several_processes.py` prints."""
    script = Path(__file__).with_name("several_processes.py")
    arguments = [models(), models("llama"), directory, str(processes), mode, distribution]
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


Outcome = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def outcome(
    models: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str, str], Outcome]:
    """Directory and outcome of a run on so many processes, computed once."""

    @functools.cache
    def get(processes: int, mode: str, distribution: str) -> Outcome:
        directory = tmp_path_factory.mktemp(mode)
        return directory, run(models, directory, processes, mode, distribution)

    return get


@pytest.mark.parametrize(
    ("mode", "distribution"),
    [
        ("train", "ddp"),
        ("train", "fsdp"),
        pytest.param("train", "fsdp at once", marks=pytest.mark.nightly),
        pytest.param("train", "fsdp by class", marks=pytest.mark.nightly),
        pytest.param("lora", "ddp", marks=pytest.mark.nightly),
        ("lora", "fsdp"),
        ("sft", "fsdp"),
        pytest.param("distillation", "ddp", marks=pytest.mark.nightly),
        ("distillation", "fsdp"),
        pytest.param("train", "zero 2", marks=needs_deepspeed),
        pytest.param("train", "zero 3", marks=needs_deepspeed),
    ],
)
def test_two_processes_train_as_one_does(mode, distribution, outcome):
    alone, one = outcome(1, mode, "ddp")
    together, two = outcome(2, mode, distribution)
    assert two["restored"]
    for mine, other in zip(two["reports"], one["reports"], strict=True):
        assert mine["trained"] == other["trained"]
        # DeepSpeed's updates cannot be shortened.
        unmeasured = (
            {"update_kl", "updates", "updates_shortened"} if "zero" in distribution else set()
        )
        assert mine["metrics"].keys() == other["metrics"].keys() - unmeasured
        for name, value in mine["metrics"].items():
            # A clipped fraction jumps by a token.
            tolerance = {"abs": 0.03} if name == "clip_fraction" else {"rel": 1e-3, "abs": 1e-5}
            assert value == pytest.approx(other["metrics"][name], **tolerance), name
        for logprobs, others in zip(mine["logprobs"], other["logprobs"], strict=True):
            assert logprobs == pytest.approx(others, abs=1e-3)
    for place in ("export", Path(two["published"]).relative_to(together)):
        mine, other = (load(str(root / place)).state_dict() for root in (together, alone))
        for name, tensor in mine.items():
            assert torch.allclose(tensor, other[name], atol=1e-4), name
    assert two["learned"]
    # Each process has its part of the weights, or all of them.
    assert two["held"] == pytest.approx(one["held"] / (1 if distribution == "ddp" else 2), rel=0.01)
    # A checkpoint is the same thing, whoever wrote it.
    for file in ("weights.safetensors", "optimiser.safetensors"):
        mine, other = (load_file(root / "checkpoint" / file) for root in (together, alone))
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            assert tensor.dtype == other[name].dtype
            assert torch.allclose(tensor, other[name], atol=1e-4), name


@pytest.mark.parametrize(
    ("distribution", "wanted"),
    [
        ("fsdp", {"reshard_after_forward": True, "layers": ["Qwen2DecoderLayer"]}),
        pytest.param(
            "fsdp at once",
            {"reshard_after_forward": False, "layers": None},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "fsdp by class",
            {"reshard_after_forward": True, "layers": ["Qwen2MLP"]},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_accelerate_shards_as_the_settings_say(distribution, wanted, outcome):
    _, found = outcome(2, "train", distribution)
    plugin = found["fsdp"]
    assert {name: plugin[name] for name in wanted} == wanted
    assert plugin["version"] == 2
    # The layers; and the tied embedding, the last norm and the head, which are one unit; and the
    # rest.
    assert plugin["units"] == (2 if wanted["layers"] else 0) + 4


@pytest.mark.parametrize("distribution", ["ddp", "fsdp"])
def test_a_step_that_is_refused_leaves_no_trace_on_two_processes(distribution, outcome):
    _, found = outcome(2, "train", distribution)
    assert "gradient norm" in found["refused"]
    assert found["untouched"]


@OFTEN_SHARDED
def test_the_death_of_a_process_loses_the_weights_and_is_told(distribution, models, tmp_path):
    found = run(models, tmp_path, 2, "kill", distribution)
    assert "checkpoint" in found["step"] or "has ended" in found["step"]
    assert found["publish"]


@OFTEN_SHARDED
def test_a_checkpoint_that_one_process_alone_can_load_loses_the_weights(
    distribution, models, tmp_path
):
    """Until it is loaded by all: replicas would differ, or shards be of different steps."""
    found = run(models, tmp_path, 2, "apart", distribution)
    loading, *others = found["there"]["refused"]
    assert loading.startswith("training process 0 failed and process 1 did not: ")
    assert "there is not a checkpoint" in loading
    assert len(others) == 3
    loading, *others = found["here"]["refused"]
    assert "training process 1 failed: here is not a checkpoint" in loading
    assert len(others) == 3
    assert all("load a checkpoint" in message for message in others)
    assert found["there"]["mended"]
    assert found["here"]["mended"]
