"""The checks on the metrics of real runs, as `benchmarks/health.py --histories` keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import FailureConfig
from ajet_server.health import HealthFinding, HealthMonitor

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return history


def found(steps: list[dict[str, float]]) -> list[tuple[int, HealthFinding]]:
    """What begins, with the step at which it is found."""
    monitor = HealthMonitor(FailureConfig())
    return [
        (step, finding)
        for step, metrics in enumerate(steps, start=1)
        for finding in monitor.record(step, metrics, 0.0)
    ]


@pytest.mark.parametrize(
    "path", [p for p in HISTORIES if p.stem.startswith("healthy")], ids=lambda p: p.stem
)
def test_a_healthy_run_raises_no_alarm(path: Path) -> None:
    steps = read(path)["steps"]
    assert found(steps[:25]) == []
    # Once everything is learnt there is no signal left, which is worth a word and no pause.
    later = [finding for _, finding in found(steps)]
    assert {finding.kind for finding in later} <= {"zero_signal"}
    assert not any(finding.pauses for finding in later)


@pytest.mark.parametrize(
    "path", [p for p in HISTORIES if not p.stem.startswith("healthy")], ids=lambda p: p.stem
)
def test_a_planted_fault_is_found_and_pauses_the_run(path: Path) -> None:
    history = read(path)
    named = [(step, f) for step, f in found(history["steps"]) if f.kind in history["kinds"]]
    assert {finding.kind for _, finding in named} == set(history["kinds"])
    assert any(finding.pauses for _, finding in named)
    # The first step shows nothing, and five batches without signal are needed.
    assert max(step for step, _ in named) <= 6
