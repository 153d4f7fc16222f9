"""torch, TRL and verl make the same step of the same batch, each in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ajet_testing.backends import ROOT, backend_python

pytestmark = pytest.mark.timeout(900)


def stepped(
    python: str, name: str, model: str, directory: Path
) -> tuple[dict[str, object], torch.Tensor]:
    """Report, and where the weights went."""
    directory.mkdir()
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    sources = [str(ROOT), *(str(path) for path in ROOT.glob("plugins/*/src"))]
    # Where the metadata of the trainer ``torch`` is.
    sources.append(kept.get("PYTHONPATH", ""))
    done = subprocess.run(
        [python, Path(__file__).with_name("cross_check.py"), name, model, directory],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYTHONPATH": os.pathsep.join(sources), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    moved = load_file(directory / "moved.safetensors")
    report: dict[str, object] = json.loads((directory / "report.json").read_text())
    return report, torch.cat([moved[key].flatten().double() for key in sorted(moved)])


@pytest.mark.nightly
def test_loss_gradient_and_update_are_the_same(models, tmp_path):
    """Tolerances: losses, gradient norms 1e-4 relative, logprobs 1e-4, cosine of updates 0.9999."""
    pythons = {"torch": sys.executable, "trl": backend_python("trl"), "verl": sys.executable}
    found = {
        name: stepped(python, name, models(), tmp_path / name) for name, python in pythons.items()
    }
    theirs, their_way = found["torch"]
    assert float(their_way.norm()) > 1e-3
    for name in ("trl", "verl"):
        ours, our_way = found[name]
        for metric in ("loss", "grad_norm", "ratio_mean", "clip_fraction", "logprob_gap"):
            wanted = pytest.approx(theirs["metrics"][metric], rel=1e-4, abs=1e-6)
            assert ours["metrics"][metric] == wanted, (name, metric)
        cosine = torch.nn.functional.cosine_similarity(our_way, their_way, dim=0)
        assert float(cosine) > 0.9999, name
        assert float(our_way.norm()) == pytest.approx(float(their_way.norm()), rel=1e-3)
        for mine, other in zip(ours["logprobs"], theirs["logprobs"], strict=True):
            assert mine == pytest.approx(other, abs=1e-4)
