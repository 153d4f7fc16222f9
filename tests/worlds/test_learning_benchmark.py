"""`benchmarks/learning.py`: what it refuses, and what it makes of figures."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ajet_worlds.learning import Learned

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def learning() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("learning", BENCHMARKS / "learning.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["learning"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.processes
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("world", "learning.py: no installed plugin provides world 'nope'; known: bandit, grid"),
        pytest.param(
            "trainer",
            "learning.py: no installed plugin provides trainer 'nope'; known: ",
            # The engine, which it looks for first, is that of the torch plugin.
            marks=pytest.mark.torch,
        ),
        ("engine", "learning.py: no installed plugin provides engine 'nope'; known: "),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_exist(
    option: str, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(BENCHMARKS / "learning.py"), f"--{option}", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_the_interval_of_a_mean_is_students(learning: ModuleType) -> None:
    # mean 0.5, deviation 0.1, 2.776 * 0.1 / sqrt(5)
    low, high = learning.interval([0.5 - 0.1 * 2**0.5, 0.5, 0.5, 0.5, 0.5 + 0.1 * 2**0.5])
    assert (low, high) == pytest.approx((0.5 - 0.12415, 0.5 + 0.12415), abs=1e-4)
    assert learning.interval([0.9, 1.0]) == (pytest.approx(0.3147, abs=1e-4), 1.0)
    assert learning.interval([0.7]) == (0.0, 1.0)


def test_a_summary_has_each_seed_the_worst_and_the_mean_curve(learning: ModuleType) -> None:
    seeds = [Learned(0.1, 0.9, (0.0, 0.5), 10.0), Learned(0.3, 0.7, (0.5, 1.0), 12.0)]
    found = learning.summary("grid", seeds)
    assert found["success_before"] == [0.1, 0.3]
    assert found["success_after"] == [0.9, 0.7]
    assert (found["mean"], found["worst"], found["reached"]) == (0.8, 0.7, 1)
    assert found["curve"] == [0.25, 0.75]


def test_seeds_that_failed_are_counted_and_named(learning: ModuleType) -> None:
    ended = [Learned(0.1, 0.9, (0.0,), 10.0)]
    found = learning.summary("grid", ended, ["seed 1: the run paused: no signal"])
    assert found["success_after"] == [0.9]
    assert found["failed"] == ["seed 1: the run paused: no signal"]
    assert learning.line("grid", found).endswith("1 of 1 reached 0.9, 1 seeds failed")
    none = learning.summary("grid", [], ["seed 0: gone"])
    assert learning.line("grid", none).endswith("1 seeds failed")


# Matplotlib asks fontconfig for the fonts of a machine when it is imported for the first time.
@pytest.mark.processes
def test_a_plot_has_a_panel_for_each_world(learning: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    seeds = [Learned(0.1, 0.9, (0.0, 0.5), 10.0), Learned(0.3, 0.7, (0.5, 1.0), 12.0)]
    results = dict.fromkeys(("bandit", "grid", "memory", "pair"), seeds)
    learning.draw(results, tmp_path / "plot.png", "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_results_of_single_runs_are_read_back(learning: ModuleType, tmp_path: Path) -> None:
    def run(seed: int) -> Any:
        return learning.Run("grid", seed, "torch", "torch", "sync", None, 128)

    learned = Learned(0.1, 0.9, (0.0, 0.5), 10.0)
    kept = learning.KeptResults(tmp_path / "runs.jsonl")
    assert learning.kept_result(kept, run(0)) is None
    kept.add(run(0).name, asdict(learned))
    kept.add(run(1).name, "seed 1: the run paused")
    again = learning.KeptResults(tmp_path / "runs.jsonl")
    assert learning.kept_result(again, run(0)) == learned
    assert learning.kept_result(again, run(1)) == "seed 1: the run paused"
    assert learning.kept_result(again, run(2)) is None
